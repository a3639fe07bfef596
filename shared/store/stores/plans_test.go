package stores_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
)

func TestEveryStatementPreparesAgainstTheMigratedSchema(t *testing.T) {
	t.Parallel()
	conn := storetest.ConnectAs(t, sandbox.NewDatabase(t), sandbox.Roles.Hot)
	all := storetest.Statements(t)
	require.Greater(t, len(all), 15)
	for name, sql := range all {
		_, err := conn.Prepare(t.Context(), name, sql)
		require.NoError(t, err, name)
	}
}

func TestMessagePlansUseIndexesWithStaleStatistics(t *testing.T) {
	t.Parallel()
	const one = `, array[1]::smallint[]`
	storetest.Plans{
		Fill: `
insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
	select g, g, g, 0, 'shop', g::text, 0, 'a', 'b', '1', true, 5, 1 from (select gen_random_uuid() from generate_series(1, 50000)) r (g);
insert into message_live (id, kind, destination_key, stream, status, remaining_sends, next_at)
	select id, (random() * 1.4)::integer, (random() * 20)::integer::text, 'other-' || (random() * 20)::integer, 1, 5, now() + interval '1 hour' from messages limit 30000;
insert into stream_pauses (stream, until, failures, reason) select 'other-' || g, now(), 1, '' from generate_series(1, 1000) g;
insert into message_live (id, kind, status, remaining_sends, next_at) select id, 0, 1, 0, null from messages offset 30000 limit 10000;
insert into message_done (id, status, abandoned, remaining_sends, send_no, epoch) select id, 2, false, 4, 1, 1 from messages offset 40000;
insert into message_receipts (message_id, consumer, send_no) select id, 'c', 1 from message_done`,
		Tables: []string{"messages", "message_live", "message_done", "message_receipts", "stream_pauses"},
		Args: map[string]string{
			"messageSQL":             storetest.AnID,
			"knownMessagesSQL":       storetest.SomeIDs,
			"messagesExistSQL":       storetest.SomeIDs,
			"consumersSQL":           storetest.AnID,
			"recipientSQL":           storetest.AnID + `, 'points'`,
			"confirmTokensSQL":       storetest.SomeIDs,
			"finishedMessagesSQL":    storetest.SomeIDs,
			"anyMessageDueSQL":       "",
			"lockDueMessagesSQL":     "100, 16, array['USERS'], array[1]",
			"nextRelaySQL":           "",
			"pauseStreamSQL":         `'USERS', 1, '', 2`,
			"resumeStreamSQL":        `'x'`,
			"removeBodilessDueSQL":   "",
			"removeBodilessPostsSQL": "",
			"claimPostsSQL":          `100, array[1], array['x'], 16, 32, 30`,
			"nextPostSQL":            "",
			"lockLiveMessagesSQL":    storetest.SomeIDs,
			"lockDoneMessagesSQL":    storetest.SomeIDs,
			"lockStuckMessagesSQL":   "1::smallint, null, 0, 100",
			"updateLiveMessagesSQL":  storetest.SomeIDs + one + one + one + `, array[1], array['']::text[], array[now()], array[now()]`,
			"updateDoneMessagesSQL":  storetest.SomeIDs + one + `, array[false], array['']::text[], array[now()]`,
			"deleteLiveMessagesSQL":  storetest.SomeIDs,
			"deleteDoneMessagesSQL":  storetest.SomeIDs,
			"deliveredLiveSQL":       storetest.SomeIDs + `, ` + storetest.SomeIDs + `, now()`,
			"deliveredDoneSQL":       storetest.SomeIDs + `, ` + storetest.SomeIDs + `, now()`,
			"rememberAcceptedSQL":    `array[1]::bigint[], ` + storetest.SomeIDs + `, ` + storetest.SomeIDs,
		},
		Index: map[string]string{
			"lockDueMessagesSQL": "message_live_due", "anyMessageDueSQL": "message_live_due",
			"claimPostsSQL": "message_live_posts", "nextPostSQL": "message_live_posts", "nextRelaySQL": "message_live_due", "lockStuckMessagesSQL": "message_live_stuck",
		},
		NoSort: []string{"lockDueMessagesSQL", "anyMessageDueSQL", "nextRelaySQL"},
	}.Require(t)
}

func TestAcceptedPlansUseIndexesWithStaleStatistics(t *testing.T) {
	t.Parallel()
	storetest.Plans{
		Fill:   `insert into accepted_messages (accept_seq, id) select g, gen_random_uuid() from generate_series(1, 40000) g`,
		Tables: []string{"accepted_messages"},
		Args: map[string]string{
			"missingSequencesSQL": "1, 1000",
			"forgetEarlierSQL":    "now(), " + storetest.AnID + ", 10000",
			"purgeCandidatesSQL":  "60, 500",
			"knownAcceptedSQL":    storetest.SomeIDs + `, array[1]::bigint[]`,
			"markPurgedSQL":       storetest.SomeIDs + `, array[1]::bigint[]`,

			"noteDeliveredSQL":   storetest.SomeIDs + `, now()`,
			"deliveredSQL":       storetest.AnID,
			"forgetDeliveredSQL": "60, 60",
			"forgetNotedSQL":     storetest.SomeIDs,
		},
		Index: map[string]string{
			"forgetDeliveredSQL": "accepted_messages_place", "missingSequencesSQL": "accepted_messages_place", "purgeCandidatesSQL": "accepted_messages_place",
			"forgetEarlierSQL": "accepted_messages_pkey",
		},
	}.Require(t)
}

func TestWebhookPlansUseIndexesWithStaleStatistics(t *testing.T) {
	t.Parallel()
	storetest.Plans{
		Fill: `
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, callback_url)
	select gen_random_uuid(), 0, 'default', 5, 3, 0, '13800138000', 'x', 'https://a.example' from generate_series(1, 40000);
insert into task_done (id, status, reason, retry_count, ended) select id, 2, 0, 0, 0 from tasks;
insert into event_outbox (kind, ids)
	select 'task.succeeded', array_agg(id) from (select id, row_number() over () / 400 as n from tasks) t group by n;
insert into webhook_endpoints (id, caller_id, url, secret) select gen_random_uuid(), g, 'https://b.example', 'enc2.' from generate_series(1, 20) g;
insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url)
	select gen_random_uuid(), t.id, (select id from webhook_endpoints where caller_id = 1 + t.seq % 20), 1, 'x', t.id, 'u' from tasks t;
insert into webhook_events (id, payload) select id, '{}' from tasks;
insert into message_live (id, kind, destination_key, remaining_sends) select id, seq % 2, '1 a.example', 5 from tasks`,
		Tables: []string{"tasks", "task_done", "event_outbox", "webhook_deliveries", "webhook_events", "message_live"},
		Args: map[string]string{
			"lockEventsSQL":       "4, ''",
			"anyEventSQL":         "''",
			"keepEventsSQL":       "1, " + storetest.SomeIDs + ", 0, 1",
			"deleteEventsSQL":     "array[1]",
			"receiversSQL":        storetest.SomeIDs + `, array['webhook.disabled']`,
			"claimDeliveriesSQL":  `100, array[1], ` + storetest.SomeIDs + `, array[''], array[false], 16, 32, 32, 30, array[false]`,
			"insertDeliveriesSQL": storetest.SomeIDs + `, array[1], ` + storetest.SomeIDs + `, array[''], array[''], array[''], array[''], ` + storetest.SomeIDs + `, array['']`,
			"anyDeliverySQL":      "",
			"nextWebhookSQL":      "",
			"nextDeliverySQL":     "",
			"lockDeliveriesSQL":   storetest.SomeIDs,
			"updateDeliveriesSQL": storetest.SomeIDs + `, array[1]::smallint[], array[1]::smallint[], array[null]::timestamptz[], array['{}']`,
			"endDeliveriesSQL":    `1, ` + storetest.AnID + `, 500`,
			"endUndeliverableSQL": "500",
			"deliverySQL":         storetest.AnID + `, null`,
		},
		Index: map[string]string{"lockEventsSQL": "event_outbox_due", "anyEventSQL": "event_outbox_due", "claimDeliveriesSQL": "webhook_deliveries_due", "anyDeliverySQL": "webhook_deliveries_due", "nextDeliverySQL": "webhook_deliveries_due", "nextWebhookSQL": "webhook_deliveries_due",
			"endDeliveriesSQL": "webhook_deliveries_due", "endUndeliverableSQL": "webhook_deliveries_due"},
	}.Require(t)
}
