package stores_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/events"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

// An attacker who controls a function can write a row with forged values. Statements that process many rows at once must not fail
// because of it. In the statements that forge a row, $1 is the id of this row.
func TestForgedRowDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, func(c *stores.Config) { c.Backoff = task.Backoff{"*": {time.Hour}} })
	endpoint := db.MustAddEndpoint(t, 7, "https://shop.example").ID
	run := func(name, forge string, id task.ID, check func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			_, err := db.Hot.Exec(t.Context(), forge, id)
			require.NoError(t, err)
			check(t)
		})
	}

	sweep := func(name, forge string, forged, intact task.ID) {
		db.ExpireLeases(t)
		run(name, forge, forged, func(t *testing.T) {
			_, err := db.Tasks.Sweep(t.Context(), 100)
			require.NoError(t, err)
			require.NotEqual(t, task.Processing, db.MustTask(t, intact).State)
		})
		db.Exec(t, `delete from task_live`)
	}
	claimed := func(retries int16) (forged, intact task.ID) {
		a, b := storetest.Submission(), storetest.Submission()
		a.MaxRetries, b.MaxRetries = retries, retries
		db.MustSubmit(t, a, b)
		require.Len(t, db.ClaimAs(t, "app", 2), 2)
		return a.ID, b.ID
	}
	forged, intact := claimed(3)
	sweep("negative retries", `update task_live set retry_count = -5 where id = $1`, forged, intact)
	forged, intact = claimed(0)
	sweep("result of a live task", `insert into task_done (id, status, reason, retry_count, ended) values ($1, 2, 0, 0, 0)`, forged, intact)
	sent := db.MustSubscribe(t, storetest.Booking(1, `{}`))
	require.Len(t, db.Claim(t, func(r *tasks.ClaimRequest) { r.Queue = task.WeChatQueue }), 1)
	_, intact = claimed(0)
	sweep("retries of a subscribe message", `update subscribe_message_logs set retries_before = 2147483647 where task_id = $1`, sent.TaskID, intact)

	for name, forge := range map[string]string{
		"negative sends":           `update message_live set send_no = -5 where id = $1`,
		"result of a live message": `insert into message_done (id, status, abandoned, remaining_sends, send_no, epoch) values ($1, 2, false, 0, 1, 1)`,
		"usage of a stream": `insert into stream_usage (since, stream, caller_id, bytes)
			select date_trunc('minute', now()) + m * interval '1 minute', 'MESSAGES', 0, 9223372036854775807 from generate_series(0, 1) m where $1::uuid is not null`,
	} {
		toOrders := func(m *messages.Submission) {
			m.To, m.Confirm = msg.Address{Kind: msg.Subject, Name: "msg.orders"}, name == "negative sends"
		}
		forged, intact := storetest.Message(name+" forged", toOrders), storetest.Message(name+" intact", toOrders)
		db.MustSave(t, forged, intact)
		run(name, forge, forged.ID, func(t *testing.T) {
			require.Equal(t, 2, db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted)).Rows)
			require.Equal(t, "sent", db.MustMessage(t, intact.ID).State())
		})
		db.Exec(t, `delete from message_live; delete from stream_usage`)
		toURL := func(m *messages.Submission) {
			m.To, m.Confirm = msg.Address{Kind: msg.URL, Name: "https://shop.example/in"}, false
		}
		forged, intact = storetest.Message(name+" forged post", toURL), storetest.Message(name+" intact post", toURL)
		db.MustSave(t, forged, intact)
		run(name+", to a URL", forge, forged.ID, func(t *testing.T) {
			posts, err := db.Messages.ClaimPosts(t.Context(), messages.InFlightLimits{All: 9, Account: 9, Destination: 9}, nil, time.Minute)
			require.NoError(t, err)
			var posted []messages.Posted
			for _, p := range posts {
				posted = append(posted, messages.Posted{Post: p, Result: msg.Result{Outcome: msg.Accepted}})
			}
			_, err = db.Messages.SettlePosts(t.Context(), posted)
			require.NoError(t, err)
			require.Equal(t, "received", db.MustMessage(t, intact.ID).State())
			require.Zero(t, db.Count(t, `select count(*) from message_live`), "the forged message is not posted again")
		})
		db.Exec(t, `delete from message_live; delete from stream_usage`)
	}

	for name, forge := range map[string]string{
		"claims":            `update webhook_deliveries set claims = 2147483647 where id = $1`,
		"tried":             `update webhook_deliveries set tried = 2147483647 where id = $1`,
		"negative attempts": `update webhook_deliveries set attempts = -5 where id = $1`,
		"long tries":        `update webhook_deliveries set tries = jsonb_build_array(repeat('x', 1048570)) where id = $1`,
		"malformed tries":   `update webhook_deliveries set tries = '[1, "x", {"at": 5}]' where id = $1`,
	} {
		forged, intact := task.NewID(), task.NewID()
		db.Exec(t, `with e as (insert into webhook_events (id, payload) select id::text, '{}' from unnest($1::uuid[]) id returning id)
			insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url)
			select id::uuid, id, $2, 7, 'x', id::uuid, 'u' from e`, []task.ID{forged, intact}, endpoint)
		run(name, forge, forged, func(t *testing.T) {
			var tried []webhooks.Tried
			for _, d := range db.MustClaimDeliveries(t) {
				tried = append(tried, webhooks.Tried{DueDelivery: d, Result: msg.PostResult{Status: 500}, Try: webhooks.Try{Status: 500}})
			}
			require.Len(t, tried, 2)
			_, err := db.Webhooks.SettleDeliveries(t.Context(), tried, time.Hour)
			require.NoError(t, err)
			page, _, err := db.Webhooks.Deliveries(t.Context(), webhooks.DeliveryFilter{Limit: 9})
			require.NoError(t, err)
			require.Len(t, page, 2)
			require.Equal(t, intact, page[0].ID)
			require.Len(t, page[0].Tries, 1)
		})
		db.Exec(t, `delete from webhook_deliveries; update webhook_endpoints set failing_since = null`)
	}

	for name, forge := range map[string]string{
		"reason of an event": `insert into event_outbox (kind, reason, ids) values ('task.failed', 77, array[$1::uuid])`,
		"kind of an event":   `insert into event_outbox (kind, ids) values (repeat('k', 65536), array[$1::uuid])`,
	} {
		run(name, forge, task.NewID(), func(t *testing.T) {
			_, err := db.Events.Relay(t.Context(), "", 10, func(_ context.Context, due []events.Due) ([]msg.Result, error) {
				for _, e := range due {
					require.Empty(t, e.Reason.String())
				}
				return []msg.Result{{Outcome: msg.Refused, Reason: "no subject"}}, nil
			})
			require.NoError(t, err)
			require.Zero(t, db.Count(t, `select count(*) from event_outbox`))
		})
	}

	other := storetest.Submission(storetest.FromCaller(7))
	db.MustSubmit(t, other)
	long := task.NewID()
	run("host of a callback", `insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, callback_url)
		select $1, 7, 'default', 5, 3, 0, '1', 'x', 'https://' || string_agg(md5(n::text), '') from generate_series(1, 1900) n`, long, func(t *testing.T) {
		var recorded []webhooks.RecordedEvent
		for _, id := range []task.ID{long, other.ID} {
			recorded = append(recorded, webhooks.RecordedEvent{ID: id.String(), Kind: "task.failed", Subject: id, Payload: `{}`})
		}
		n, _, err := db.Webhooks.RecordEvents(t.Context(), recorded, storetest.FirstSecret)
		require.NoError(t, err)
		require.Equal(t, 3, n, "both events to the endpoint, one also to the callback URL of its task")
	})

	run("accepted message without a sequence number", `insert into accepted_messages (id, saved_at) values ($1, now() - interval '1 hour')`, task.NewID(), func(t *testing.T) {
		_, err := db.Messages.PurgeCandidates(t.Context(), time.Minute, 10)
		require.NoError(t, err)
	})

	db.Exec(t, `insert into task_totals (day, succeeded, failed, subscribe_succeeded, subscribe_failed, counted_to)
		select now()::date - 3, 0, 0, 0, 0, (now()::date - 3) + time '12:00'`)
	db.Exec(t, `insert into task_done (id, status, reason, retry_count, ended, reported_at) select gen_random_uuid(), 2, 0, 0, 0, (now()::date - 3) + time '13:00'`)
	run("total of a day", `update task_totals set succeeded = 9223372036854775807 where $1::uuid is not null`, task.NewID(), func(t *testing.T) {
		require.NoError(t, db.Maintenance.CloseDays(t.Context()))
	})
}
