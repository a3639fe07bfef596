package messages_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/events"
	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

const makeOldSQL = `update message_done set finished_at = finished_at - interval '100 days'`

// archiveMessages makes all final messages 100 days old and archives them.
func archiveMessages(t *testing.T, db *storetest.DB) (moved int) {
	t.Helper()
	db.Exec(t, makeOldSQL)
	return db.MustArchive(t, maintenance.ArchiveRun{})["messages"]
}

func TestArchivedMessage(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	m := storetest.Message("k", func(m *messages.Submission) {
		m.Exchange, m.RoutingKey, m.SentAt, m.ExpectedReceipts = "orders", "paid", time.Now().Truncate(time.Microsecond), 2
	})
	db.SaveReceived(t, m)
	mustConfirm(t, db, m.ID, "stock")
	db.Exec(t, makeOldSQL)
	before := db.MustMessage(t, m.ID)
	young, sending := storetest.Message("young"), storetest.Message("sending")
	db.SaveReceived(t, young)
	db.MustSave(t, sending)
	db.Exec(t, `update message_live set updated_at = now() - interval '200 days'`)
	require.Equal(t, map[string]int{"messages": 1}, db.MustArchive(t, maintenance.ArchiveRun{}))
	require.Equal(t, []int{2, 1, 1, 1}, []int{
		db.Count(t, `select count(*) from messages`), db.Count(t, `select count(*) from message_live`),
		db.Count(t, `select count(*) from message_done`), db.Count(t, `select count(*) from message_receipts`),
	}, "messages that are not final, or became final less than 90 days ago, stay")

	t.Run("is found by its id", func(t *testing.T) {
		after := db.MustMessage(t, m.ID)
		require.True(t, after.Archived)
		require.Len(t, after.Receipts, 2)
		after.Archived = false
		require.Equal(t, before, after, "all fields are archived")
	})
	t.Run("is replayed and not saved again", func(t *testing.T) {
		want := messages.Submitted{State: "received", Status: msg.Received, Replayed: true, Archived: true}
		outs := db.MustSave(t, storetest.Message("k", func(r *messages.Submission) { *r = *m; r.CallID = task.NewID() }), storetest.Message("new"))
		require.Equal(t, []messages.Submitted{want, {State: "sending"}}, outs)
		other := storetest.Message("k", data(`8`))
		require.Equal(t, task.CodeKeyReused, db.MustSave(t, other)[0].Refused.Code)
		want.Replayed = false
		require.Equal(t, []messages.Submitted{want}, db.MustSave(t, m), "the call that saved the message is tried again, so this is no replay")
		require.Equal(t, []messages.Saving{messages.SavedBefore, messages.SaveRejected, messages.SavedNow}, mustSaveAccepted(t, db,
			accepted(1, "k", func(r *messages.Submission) { r.Data = m.Data }), accepted(2, "k", data(`"other"`)), accepted(3, "newer")))
		require.Equal(t, 1, db.Count(t, `select count(*) from archived_messages`))
		require.Zero(t, db.Count(t, `select count(*) from message_live where id = $1`, m.ID), "the message is not sent again")
	})
	t.Run("is still acknowledged to its sender", func(t *testing.T) {
		var acks []string
		_, err := db.Events.Relay(t.Context(), "", 100, func(_ context.Context, due []events.Due) ([]msg.Result, error) {
			for _, e := range due {
				if e.Subject == m.ID {
					acks = append(acks, e.Kind+" to "+e.From)
				}
			}
			return make([]msg.Result, len(due)), nil
		})
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"message.saved to shop", "message.rejected to shop"}, acks)
	})
	t.Run("can still be confirmed", func(t *testing.T) {
		for range 2 {
			require.Equal(t, "received", mustConfirm(t, db, m.ID, "late"))
		}
		require.Equal(t, []string{"points", "stock", "late"}, store.Column(db.MustMessage(t, m.ID).Receipts, func(r messages.Receipt) string { return r.Consumer }))
	})
	t.Run("counts as final when its stream is trimmed", func(t *testing.T) {
		finished, err := db.Messages.Final(t.Context(), []task.ID{m.ID, sending.ID})
		require.NoError(t, err)
		require.Equal(t, map[task.ID]bool{m.ID: true}, finished)
	})
	t.Run("is neither redriven nor abandoned", func(t *testing.T) {
		_, err := db.Messages.Redrive(t.Context(), m.ID, storetest.Tester)
		require.Equal(t, task.CodeConflict, task.CodeOf(err))
		_, err = db.Messages.Abandon(t.Context(), m.ID, storetest.Tester)
		require.Equal(t, task.CodeConflict, task.CodeOf(err))
		require.Zero(t, db.Count(t, `select count(*) from operator_actions`))
	})
}

// The statement with which the archive locks the message begins before the confirmation commits, so it does not see the receipt.
func TestReceiptConfirmedWhileMessageIsArchivedIsKept(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	m := storetest.Message("k", func(m *messages.Submission) { m.ExpectedReceipts = 2 })
	db.MustSave(t, m)
	db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted))
	_, err := db.Messages.Abandon(t.Context(), m.ID, storetest.Tester)
	require.NoError(t, err)
	db.Exec(t, `create function wait_here() returns bool language plpgsql as $$ begin perform pg_advisory_xact_lock(42); return true; end $$`)
	db.Exec(t, `alter table message_done enable row level security`)
	db.Exec(t, `create policy wait on message_done using (current_user <> 'sendonce_retention' or current_query() not like '%for update%' or wait_here())`)
	release := db.HoldLock(t, `select pg_advisory_xact_lock(42)`)
	archived := make(chan int, 1)
	db.Exec(t, makeOldSQL)
	go func() {
		moved := 0
		for step, err := range db.Maintenance.Archive(t.Context(), maintenance.ArchiveRun{}) {
			if err != nil {
				t.Error(err)
			}
			if step.Table == "messages" {
				moved += step.Rows
			}
		}
		archived <- moved
	}()
	require.Eventually(t, func() bool {
		return db.Count(t, `select count(*) from pg_locks where not granted and locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`) == 1
	}, time.Minute, 5*time.Millisecond)
	require.Equal(t, "abandoned", mustConfirm(t, db, m.ID, "points"))
	release()
	require.Equal(t, 1, <-archived)
	require.Equal(t, "received", mustConfirm(t, db, m.ID, "stock"), "the receipts of both consumers count")
}

func TestArchivedAbandonedMessageCanBeConfirmed(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	m, unsent := storetest.Message("k"), storetest.Message("unsent")
	db.MustSave(t, m)
	db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted))
	db.MustSave(t, unsent)
	for _, id := range []task.ID{m.ID, unsent.ID} {
		_, err := db.Messages.Abandon(t.Context(), id, storetest.Tester)
		require.NoError(t, err)
	}
	require.Equal(t, 2, archiveMessages(t, db))
	again, err := db.Messages.Abandon(t.Context(), m.ID, storetest.Tester)
	require.NoError(t, err, "the message is abandoned already")
	require.Equal(t, "abandoned", again.State())
	_, err = db.Messages.Redrive(t.Context(), m.ID, storetest.Tester)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	require.ErrorContains(t, err, "archived")
	require.Equal(t, "received", mustConfirm(t, db, m.ID, "points"))
	d := db.MustMessage(t, m.ID)
	require.Equal(t, []any{"received", "points", true}, []any{d.State(), d.FinishedBy, d.Archived})

	_, err = db.Messages.Confirm(t.Context(), unsent.ID, storetest.ConfirmationBy("points"))
	require.Equal(t, task.CodeNotFound, task.CodeOf(err), "a message that was never sent cannot be received")
	require.Equal(t, "abandoned", db.MustMessage(t, unsent.ID).State())
}

// A message is repeated while it is moved to the archive, so the repeat waits for the message's row. The repeat must not insert
// the message again when the row is deleted.
func TestRepeatDuringArchiveIsAReplay(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	m := storetest.Message("k")
	db.SaveReceived(t, m)
	db.Exec(t, makeOldSQL)
	release := db.HoldLock(t, storetest.Statements(t)["archiveMessagesSQL"], []string{m.ID.String()}, time.Now())
	var outs []messages.Submitted
	var errs []error
	var submit sync.WaitGroup
	submit.Go(func() {
		for again := true; again; again = task.CodeOf(errs[0]) == task.CodeKeyInFlight { // the wait for the row is limited
			outs, errs = db.Messages.Submit([]*messages.Submission{storetest.Message("k")})
		}
	})
	db.AwaitLockWait(t)
	release()
	submit.Wait()
	require.NoError(t, errs[0])
	require.True(t, outs[0].Replayed && outs[0].Archived, "%+v", outs[0])
	require.Zero(t, db.Count(t, `select count(*) from messages`))
	require.Zero(t, db.Count(t, `select count(*) from message_live`))
}

func TestArchivedMessagesStayInTheirConversation(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	finish := func() {
		db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted))
		require.Zero(t, db.Count(t, `select count(*) from message_live`))
	}
	first := db.Chat(t, "ann", "bob", "k0")
	db.Chat(t, "bob", "ann", "k1")
	db.Chat(t, "ann", "bob", "k2")
	finish()
	before := db.MustConverse(t, "ann", "bob", task.ID{}, 10)
	require.NoError(t, db.Messages.MarkRead(t.Context(), "bob", "ann", first))
	require.Equal(t, 3, archiveMessages(t, db))
	db.Chat(t, "bob", "ann", "k3")
	db.Chat(t, "ann", "bob", "k4")
	finish()

	page := db.MustConverse(t, "ann", "bob", task.ID{}, 3)
	require.Equal(t, []string{"k4", "k3", "k2"}, keys(page))
	require.Equal(t, []bool{false, false, true}, store.Column(page.Messages, func(m messages.Detail) bool { return m.Archived }))
	require.True(t, page.More)
	require.Equal(t, []int{2, 2}, []int{page.Read[0].Unread, page.Read[1].Unread}, "archived messages count as unread")
	rest := db.MustConverse(t, "ann", "bob", page.Messages[2].ID, 3)
	require.Equal(t, []string{"k1", "k0"}, keys(rest))
	require.False(t, rest.More)
	for i, m := range rest.Messages {
		m.Archived, m.UpdatedAt = false, before.Messages[i+1].UpdatedAt
		require.Equal(t, before.Messages[i+1], m)
	}
	require.NoError(t, db.Messages.MarkRead(t.Context(), "bob", "ann", page.Messages[2].ID), "the cursor can be at an archived message")
	require.Equal(t, 1, db.MustConverse(t, "ann", "bob", task.ID{}, 3).Read[1].Unread)
}
