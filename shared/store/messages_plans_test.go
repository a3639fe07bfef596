package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// fiftyThousandMessages is a burst that no ANALYZE has seen.
const fiftyThousandMessages = `
alter table messages set (autovacuum_enabled = off); alter table message_live set (autovacuum_enabled = off);
alter table message_done set (autovacuum_enabled = off); alter table message_receipts set (autovacuum_enabled = off);
insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
	select g, g, g, 0, 'shop', g::text, 0, 'a', 'b', '1', true, 5, 1 from (select gen_random_uuid() from generate_series(1, 50000)) r (g);
insert into message_live (id, status, remaining_sends, next_at) select id, 1, 5, now() + interval '1 hour' from messages limit 30000;
insert into message_live (id, status, remaining_sends, next_at) select id, 1, 0, null from messages offset 30000 limit 10000;
insert into message_done (id, status, abandoned, remaining_sends, send_no, epoch) select id, 2, false, 4, 1, 1 from messages offset 40000;
insert into message_receipts (message_id, consumer, send_no) select id, 'c', 1 from message_done`

func TestPlansOfMessagesMadeOnEmptyTablesStillUseTheIndexes(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	conn, all := asRole(t, url, "sendonce_hot"), statements(t)
	id := fmt.Sprintf("'%s'", task.NewID())
	ids := fmt.Sprintf("array[%s::uuid]", id)
	const one = `, array[1]::smallint[]`
	cases := map[string]string{ // parameters of EXECUTE
		"messageSQL":            id,
		"knownMessagesSQL":      ids,
		"messagesExistSQL":      ids,
		"consumersSQL":          id,
		"anyMessageDueSQL":      "",
		"lockDueMessagesSQL":    "100",
		"lockLiveMessagesSQL":   ids,
		"lockDoneMessagesSQL":   ids,
		"lockStuckMessagesSQL":  "1::smallint, null, 0, 100",
		"updateLiveMessagesSQL": ids + one + one + one + `, array[1], array['']::text[], array[now()]`,
		"updateDoneMessagesSQL": ids + one + `, array[false], array['']::text[]`,
		"deleteLiveMessagesSQL": ids,
		"deleteDoneMessagesSQL": ids,
	}
	execute := func(name, args string) string {
		if args != "" {
			args = "(" + args + ")"
		}
		return "execute " + name + args
	}
	_, err := owner(t, url).Exec(t.Context(), `vacuum analyze`)
	require.NoError(t, err)
	for name, args := range cases {
		_, err := conn.Exec(t.Context(), `prepare `+name+` as `+all[name])
		require.NoError(t, err, name)
		for range 10 {
			_, err = conn.Exec(t.Context(), execute(name, args))
			require.NoError(t, err, name)
		}
	}
	_, err = owner(t, url).Exec(t.Context(), fiftyThousandMessages)
	require.NoError(t, err)
	for name, args := range cases {
		rows, err := conn.Query(t.Context(), `explain `+execute(name, args))
		require.NoError(t, err, name)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err, name)
		plan := strings.Join(lines, "\n")
		for _, table := range []string{"messages", "message_live", "message_done", "message_receipts"} {
			require.NotContains(t, plan, "Seq Scan on "+table, "%s\n%s", name, plan)
		}
		require.NotContains(t, plan, "Bitmap Heap Scan", "%s\n%s", name, plan)
		switch name {
		case "lockDueMessagesSQL", "anyMessageDueSQL":
			require.Contains(t, plan, "message_live_due", "%s\n%s", name, plan)
			require.NotContains(t, plan, "Sort", "%s\n%s", name, plan)
		case "lockStuckMessagesSQL":
			require.Contains(t, plan, "message_live_stuck", "%s\n%s", name, plan)
		}
	}
}
