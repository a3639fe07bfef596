package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// archiveMessages puts all final messages 100 days back and archives them.
func (db *DB) archiveMessages(t *testing.T) (moved int) {
	t.Helper()
	db.exec(t, `update message_done set finished_at = finished_at - interval '100 days'`)
	return db.archivedRows(t, ArchiveRun{})["messages"]
}

func TestArchivedMessage(t *testing.T) {
	t.Parallel()
	db := keeping(t, sandbox.NewDatabase(t), 90, 0)
	m := reliable("k", func(m *NewMessage) {
		m.Exchange, m.RoutingKey, m.SentAt, m.ExpectedReceipts = "orders", "paid", time.Now().Truncate(time.Microsecond), 2
	})
	db.received(t, m)
	_, err := db.ReceiveMessage(t.Context(), m.ID, addressee("stock"))
	require.NoError(t, err)
	db.exec(t, `update message_done set finished_at = finished_at - interval '100 days'`)
	before := db.mustMessage(t, m.ID)
	young, sending := reliable("young"), reliable("sending")
	db.received(t, young)
	db.mustSave(t, sending)
	db.exec(t, `update message_live set updated_at = now() - interval '200 days'`)
	require.Equal(t, map[string]int{"messages": 1}, db.archivedRows(t, ArchiveRun{}))
	require.Equal(t, []int{2, 1, 1, 1}, []int{
		db.count(t, `select count(*) from messages`), db.count(t, `select count(*) from message_live`),
		db.count(t, `select count(*) from message_done`), db.count(t, `select count(*) from message_receipts`),
	}, "what is young or on its way stays")

	t.Run("is found by its id", func(t *testing.T) {
		after := db.mustMessage(t, m.ID)
		require.True(t, after.Archived)
		require.Len(t, after.Receipts, 2)
		after.Archived = false
		require.Equal(t, before, after, "nothing of it is lost")
	})
	t.Run("is answered to its repeats", func(t *testing.T) {
		want := SavedMessage{State: "received", Status: msg.Received, Replayed: true, Archived: true}
		outs := db.mustSave(t, reliable("k", func(r *NewMessage) { *r = *m; r.CallID = task.NewID() }), reliable("new"))
		require.Equal(t, []SavedMessage{want, {State: "sending"}}, outs)
		other := reliable("k", data(`8`))
		require.Equal(t, task.CodeKeyReused, db.mustSave(t, other)[0].Refused.Code)
		want.Replayed = false
		require.Equal(t, []SavedMessage{want}, db.mustSave(t, m), "the very call whose answer was lost")
		require.Equal(t, []Saving{SavedBefore, SaveRejected, SavedNow}, db.mustSaveAccepted(t,
			accepted(1, "k", func(r *NewMessage) { r.Data = m.Data }), accepted(2, "k", data(`"other"`)), accepted(3, "newer")))
		require.Equal(t, 1, db.count(t, `select count(*) from archived_messages`))
		require.Zero(t, db.count(t, `select count(*) from message_live where id = $1`, m.ID), "it is not sent again")
	})
	t.Run("has its late acknowledgements addressed", func(t *testing.T) {
		var from []string
		_, err := db.RelayEvents(t.Context(), 100, func(_ context.Context, due []DueEvent) ([]msg.Result, error) {
			for _, e := range due {
				if e.Subject == m.ID {
					from = append(from, e.Kind+" to "+e.From)
				}
			}
			return make([]msg.Result, len(due)), nil
		})
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"message.saved to shop", "message.rejected to shop"}, from)
	})
	t.Run("is confirmed still", func(t *testing.T) {
		for range 2 {
			after, err := db.ReceiveMessage(t.Context(), m.ID, addressee("late"))
			require.NoError(t, err)
			require.Equal(t, "received", after.State())
		}
		require.Equal(t, []string{"points", "stock", "late"}, column(db.mustMessage(t, m.ID).Receipts, func(r Receipt) string { return r.Consumer }))
	})
	t.Run("is over for whoever trims its stream", func(t *testing.T) {
		finished, err := db.FinishedMessages(t.Context(), []task.ID{m.ID, sending.ID})
		require.NoError(t, err)
		require.Equal(t, map[task.ID]bool{m.ID: true}, finished)
	})
	t.Run("is not redriven", func(t *testing.T) {
		by := Operator{CallerID: 3, Name: "ann", RequestID: "r"}
		_, err := db.RedriveMessage(t.Context(), m.ID, by)
		require.Equal(t, task.CodeConflict, task.CodeOf(err))
		_, err = db.AbandonMessage(t.Context(), m.ID, by)
		require.Equal(t, task.CodeConflict, task.CodeOf(err))
		require.Zero(t, db.count(t, `select count(*) from operator_actions`))
	})
}

func TestArchivedAbandonedMessageIsReceivedWhenItIsConfirmed(t *testing.T) {
	t.Parallel()
	db, by := keeping(t, sandbox.NewDatabase(t), 90, 0), Operator{CallerID: 3, Name: "ann", RequestID: "r"}
	m, unsent := reliable("k"), reliable("unsent")
	db.mustSave(t, m)
	db.relay(t, always(takes))
	db.mustSave(t, unsent)
	for _, id := range []task.ID{m.ID, unsent.ID} {
		_, err := db.AbandonMessage(t.Context(), id, by)
		require.NoError(t, err)
	}
	require.Equal(t, 2, db.archiveMessages(t))
	again, err := db.AbandonMessage(t.Context(), m.ID, by)
	require.NoError(t, err, "it is abandoned already")
	require.Equal(t, "abandoned", again.State())
	_, err = db.RedriveMessage(t.Context(), m.ID, by)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	require.ErrorContains(t, err, "archived")
	after, err := db.ReceiveMessage(t.Context(), m.ID, addressee("points"))
	require.NoError(t, err)
	require.Equal(t, "received", after.State())
	d := db.mustMessage(t, m.ID)
	require.Equal(t, []any{"received", "points", true}, []any{d.State(), d.FinishedBy, d.Archived})

	_, err = db.ReceiveMessage(t.Context(), unsent.ID, addressee("points"))
	require.Equal(t, task.CodeNotFound, task.CodeOf(err), "nobody has what was never sent")
	require.Equal(t, "abandoned", db.mustMessage(t, unsent.ID).State())
}

// The archive and a repeat at the same moment: the repeat waits for the row, which
// then is gone, and must not take its place.
func TestRepeatThatWaitsForTheArchiveIsStillARepeat(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, watch := keeping(t, url, 90, 0), owner(t, url)
	m := reliable("k")
	db.received(t, m)
	db.exec(t, `update message_done set finished_at = finished_at - interval '100 days'`)
	release := hold(t, url, statements(t)["archiveMessagesSQL"], []string{m.ID.String()}, time.Now())
	repeat := reliable("k")
	answered := make(chan SavedMessage, 1)
	go func() {
		outs, errs := db.SubmitMessages([]*NewMessage{repeat})
		if errs[0] == nil {
			answered <- outs[0]
		}
		close(answered)
	}()
	require.Eventually(t, func() bool { return waiting(t, watch) }, 10*time.Second, time.Millisecond)
	release()
	out, ok := <-answered
	require.True(t, ok)
	require.True(t, out.Replayed && out.Archived, "%+v", out)
	require.Zero(t, db.count(t, `select count(*) from messages`))
	require.Zero(t, db.count(t, `select count(*) from message_live`))
}

func TestArchivedMessagesStayInTheirConversation(t *testing.T) {
	t.Parallel()
	db := keeping(t, sandbox.NewDatabase(t), 90, 0)
	finish := func() {
		db.relay(t, always(takes))
		require.Zero(t, db.count(t, `select count(*) from message_live`))
	}
	first := db.chat(t, "ann", "bob", "k0")
	db.chat(t, "bob", "ann", "k1")
	db.chat(t, "ann", "bob", "k2")
	finish()
	before := db.mustConverse(t, "ann", "bob", task.ID{}, 10)
	require.NoError(t, db.MarkRead(t.Context(), "bob", "ann", first))
	require.Equal(t, 3, db.archiveMessages(t))
	db.chat(t, "bob", "ann", "k3")
	db.chat(t, "ann", "bob", "k4")
	finish()

	page := db.mustConverse(t, "ann", "bob", task.ID{}, 3)
	require.Equal(t, []string{"k4", "k3", "k2"}, page.keys())
	require.Equal(t, []bool{false, false, true}, column(page.Messages, func(m MessageDetail) bool { return m.Archived }))
	require.True(t, page.More)
	require.Equal(t, []int{2, 2}, []int{page.Read[0].Unread, page.Read[1].Unread}, "a message is unread until it is read")
	rest := db.mustConverse(t, "ann", "bob", page.Messages[2].ID, 3)
	require.Equal(t, []string{"k1", "k0"}, rest.keys())
	require.False(t, rest.More)
	for i, m := range rest.Messages {
		m.Archived, m.UpdatedAt = false, before.Messages[i+1].UpdatedAt
		require.Equal(t, before.Messages[i+1], m)
	}
	require.NoError(t, db.MarkRead(t.Context(), "bob", "ann", page.Messages[2].ID), "up to an archived message")
	require.Equal(t, 1, db.mustConverse(t, "ann", "bob", task.ID{}, 3).Read[1].Unread)
}
