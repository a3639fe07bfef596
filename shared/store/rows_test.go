package store_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestRowByNameNeedsAColumnForEachField(t *testing.T) {
	t.Parallel()
	type row struct {
		ErrorCode string
		SentAt    time.Time
		ClaimID   int64
		CallerID  *int64
	}
	conn := storetest.ConnectAsOwner(t, sandbox.NewDatabase(t))
	read := func(sql string) ([]row, error) {
		rows, err := conn.Query(t.Context(), sql)
		require.NoError(t, err)
		return pgx.CollectRows(rows, store.RowByName[row]())
	}
	_, err := read(`values (7::bigint, 8::bigint, 'e'::text, now())`)
	require.ErrorContains(t, err, "no field for the column column1")
	found, err := read(`select * from (values (7::bigint, 8::bigint, 'e'::text, now()), (null, null, null, null)) v (claim_id, caller_id, error_code, sent_at)`)
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Equal(t, []any{int64(7), int64(8), "e", false}, []any{found[0].ClaimID, *found[0].CallerID, found[0].ErrorCode, found[0].SentAt.IsZero()})
	require.Zero(t, found[1], "null is the zero value")
	_, err = read(`select 7::bigint as claim_id, 8::bigint as caller_id, 'e' as error_code`)
	require.ErrorContains(t, err, "3 columns for the 4 fields")
}

// insertDeadLetters inserts $2 dead letters with $1 bytes each.
const insertDeadLetters = `insert into dead_letters (function, event_id, event_type, event, reason, attempts)
	select 'f', gen_random_uuid(), 't', repeat('e', $1), 'r', 1 from generate_series(1, $2)`

func TestAPageEndsAtOneMebibyte(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, insertDeadLetters, 300<<10, 7)
	db.Exec(t, insertDeadLetters, 3<<19, 1) // longer than a page
	db.Exec(t, insertDeadLetters, 10, 2)
	deadLetters, pages := storetest.Pages(t, func(after int64) ([]store.DeadLetter, bool, error) {
		return db.Admin.DeadLetters(t.Context(), after, 200)
	}, func(l store.DeadLetter) int64 { return l.ID })
	require.Equal(t, []int{10, 10, 3 << 19, 300 << 10, 300 << 10, 300 << 10, 300 << 10, 300 << 10, 300 << 10, 300 << 10},
		store.Column(deadLetters, func(l store.DeadLetter) int { return len(l.Event) }))
	require.Equal(t, 5, pages, "two short rows, the long row alone, and three pages with up to three of the others")
}

// Half of the conversation is archived. The rows of both tables count towards one page.
func TestAPageOfAConversationEndsAtOneMebibyte(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var want []task.ID
	for i := range 40 {
		want = append([]task.ID{db.Chat(t, "ann", "bob", string(rune('A'+i)))}, want...)
	}
	db.Exec(t, `update messages set data = '"' || repeat('d', 65534) || '"'`)
	db.Exec(t, `with moved as (delete from messages where id = any($1) returning *), live as (delete from message_live where id = any($1))
		insert into archived_messages (id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends, expected_receipts, created_at,
			status, abandoned, remaining_sends, send_no, epoch, finished_at, receipts)
		select id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends, expected_receipts, created_at,
			1, false, 4, 1, 1, now(), '[]' from moved`, want[20:])
	got, pages := storetest.Pages(t, func(after task.ID) ([]messages.Detail, bool, error) {
		page, err := db.Messages.Conversation(t.Context(), "bob", "ann", after, 200)
		return page.Messages, page.More, err
	}, func(m messages.Detail) task.ID { return m.ID })
	require.Equal(t, want, store.Column(got, func(m messages.Detail) task.ID { return m.ID }))
	require.Equal(t, 3, pages, "a page has up to 16 messages of 64 KiB")
}

// Each page of these lists is cut at one mebibyte, and the pages together have every row.
func TestPagesCutAtOneMebibyteHaveEveryRow(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
			send_status, send_time, caller_id, task_id)
		select 't', 't', 'b', n, 1, 'o', to_jsonb(repeat('d', 300 << 10)), 2, now() - interval '1 minute' * (n / 2), 7, gen_random_uuid() from generate_series(1, 10) n`)
	db.Exec(t, `insert into subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data, created_at)
		select task_id, 1, 't', 'o', message_data, send_time from subscribe_message_logs`)
	all := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for name, caller := range map[string]*int64{"failures of all": nil, "failures of a caller": new(int64(7))} {
		t.Run(name, func(t *testing.T) {
			got, pages := storetest.Pages(t, func(after subscribe.LogCursor) ([]subscribe.Log, bool, error) {
				return db.Subscribe.FailedLogs(t.Context(), caller, after, 200)
			}, func(l subscribe.Log) subscribe.LogCursor { return subscribe.LogCursor{At: l.SendTime, ID: l.ID} })
			require.ElementsMatch(t, all, store.Column(got, func(l subscribe.Log) uint64 { return l.BusinessID }))
			require.Equal(t, 4, pages)
		})
	}
	t.Run("sends of a message", func(t *testing.T) {
		sends, pages := storetest.Pages(t, func(after subscribe.SendCursor) ([]subscribe.Send, bool, error) {
			return db.Subscribe.History(t.Context(), 1, after, 200)
		}, func(s subscribe.Send) subscribe.SendCursor {
			return subscribe.SendCursor{At: s.CreatedAt, TaskID: s.TaskID}
		})
		ids := store.Column(sends, func(s subscribe.Send) task.ID { return s.TaskID })
		slices.SortFunc(ids, task.ID.Compare)
		require.Len(t, slices.Compact(ids), len(all))
		require.Equal(t, 4, pages)
	})
	t.Run("lines of a task", func(t *testing.T) {
		s := storetest.Submission()
		db.MustSubmit(t, s)
		claimed := db.Claim(t)[0]
		const reports = 1200 // of 2000 bytes
		db.Exec(t, `insert into report_logs (task_id, claim_id, app_id, verdict, error_message) select $1, n, 'app', 'x', repeat('😀', 500) from generate_series(1, $2) n`, s.ID, reports)
		var got []tasks.TimelineEvent
		pages := 0
		for cursor, more := (tasks.TimelineCursor{}), true; more; pages++ {
			page, next, err := db.Tasks.Timeline(t.Context(), s.ID, cursor, reports)
			require.NoError(t, err)
			if pages == 0 {
				require.Equal(t, tasks.EventReceived, page[0].Event, "the page has lines of each log, not only the long lines of one")
				require.Equal(t, claimed.ClaimID, page[1].ClaimID)
				require.EqualValues(t, reports, page[len(page)-1].ClaimID, "the first page ends with the newest report")
			}
			got, cursor, more = append(got, page...), next, next != tasks.TimelineCursor{}
		}
		require.Len(t, got, reports+2)
		require.Equal(t, 3, pages)
	})
}

func TestErrorOfTheMeterEndsAPage(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, insertDeadLetters, 1000, 9)
	errFull, read := errors.New("no room"), 0
	ctx := store.WithMeter(t.Context(), func(bytes int) error {
		if read += bytes; read > 3000 {
			return errFull
		}
		return nil
	})
	_, _, err := db.Admin.DeadLetters(ctx, 0, 200)
	require.ErrorIs(t, err, errFull)
	require.Less(t, read, 5000, "no row was read after the error")
	page, more, err := db.Admin.DeadLetters(context.WithoutCancel(t.Context()), 0, 200)
	require.NoError(t, err, "the connection is still usable")
	require.Len(t, page, 9)
	require.False(t, more)
}

func TestRelayBatchIsAboutTwoMebibytes(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for i := range 150 {
		db.Chat(t, "ann", "bob", string(rune('A'+i%26))+string(rune('A'+i/26)))
	}
	db.Exec(t, `update messages set data = '"' || repeat('d', 65534) || '"'`)
	db.Exec(t, `update message_live set bytes = 65536`)
	var sizes []int
	for relayed := (store.Relayed{More: true}); relayed.More; {
		var err error
		relayed, err = db.Messages.Relay(t.Context(), 500, messages.Held{}, func(_ context.Context, due []messages.Due) ([]msg.Result, error) {
			sizes = append(sizes, len(due))
			return make([]msg.Result, len(due)), nil
		})
		require.NoError(t, err)
	}
	require.Equal(t, []int{33, 33, 33, 33, 18}, sizes)
}
