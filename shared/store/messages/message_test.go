package messages_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

func data(text string) func(*messages.Submission) {
	return func(m *messages.Submission) { m.Data = []byte(text) }
}

func withoutConfirm(m *messages.Submission) { m.Confirm = false }

func TestMessageLifeFromSubmitToConfirmation(t *testing.T) {
	t.Parallel()
	storetest.WithAndWithoutPooler(t, testMessageLife)
}

func testMessageLife(t *testing.T, db *storetest.DB) {
	sentAt := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := storetest.Message("k", func(m *messages.Submission) {
		m.SentAt, m.Exchange, m.RoutingKey, m.ExpectedReceipts = sentAt, "orders", "paid", 2
	})
	require.Equal(t, []messages.Submitted{{State: "sending"}}, db.MustSave(t, m))
	d := db.MustMessage(t, m.ID)
	require.Equal(t, `{"order": 7, "b":1e400}`, string(d.Data), "the data has the bytes of the submission")
	require.Equal(t, sentAt, d.SentAt.UTC())
	require.Equal(t, m.To, d.To())
	require.Equal(t, 1, db.Count(t, `select count(*) from reliable_messages where id = $1 and exchange_name = 'orders' and routing_key = 'paid'
		and content = '{"order": 7, "b":1e400}' and remaining_sends = 2 and status = 0`, m.ID))

	b := storetest.Always(storetest.Accepted)
	relayed := db.RelayDue(t, b)
	require.Equal(t, 1, relayed.Rows)
	require.WithinRange(t, relayed.NextTries[0], time.Now().Add(7*time.Second), time.Now().Add(12*time.Second))
	require.Equal(t, []string{storetest.MsgID(m, "1.1")}, b.MsgIDs())
	require.Equal(t, "order.paid.v1", b.Sends[0].Type)
	require.Equal(t, "sent", db.MustMessage(t, m.ID).State())
	require.Zero(t, db.RelayDue(t, b).Rows, "the second send is not due yet")

	for range 2 {
		require.Equal(t, "sent", mustConfirm(t, db, m.ID, "points"), "a second confirmation by the same consumer does not count")
	}
	require.Equal(t, "received", mustConfirm(t, db, m.ID, "stock"))
	mustConfirm(t, db, m.ID, "late")
	d = db.MustMessage(t, m.ID)
	require.Equal(t, []string{"points", "stock", "late"}, store.Column(d.Receipts, func(r messages.Receipt) string { return r.Consumer }))
	require.EqualValues(t, 1, d.Receipts[0].SendNo)
	require.WithinDuration(t, time.Now(), d.Receipts[0].ConfirmedAt, time.Minute)
	require.Equal(t, "stock", d.FinishedBy)
	require.Zero(t, db.Count(t, `select count(*) from message_live`))
	require.Equal(t, 1, db.Count(t, `select count(*) from reliable_messages where status = 2 and remaining_sends = 1`))
	require.Zero(t, db.MakeDueAndRelay(t, b).Rows)

	_, err := db.Messages.Confirm(t.Context(), task.NewID(), storetest.ConfirmationBy("points"))
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	_, err = db.Messages.ByID(t.Context(), task.NewID())
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}

func TestRepeatIsSavedOnceAndConflictRefused(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSave(t, storetest.Message("k"))
	require.Equal(t, []messages.Submitted{{State: "sending", Replayed: true}}, db.MustSave(t, storetest.Message("k")))
	db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted))
	require.Equal(t, []messages.Submitted{{State: "sent", Status: msg.Sent, Replayed: true}}, db.MustSave(t, storetest.Message("k")), "a replay has the present state")

	other := db.MustSave(t, storetest.Message("k", data(`8`)))[0]
	require.Equal(t, task.CodeKeyReused, other.Refused.Code)
	outs := db.MustSave(t, storetest.Message("l"), storetest.Message("l"), storetest.Message("l", data(`8`)), storetest.Message("k", func(m *messages.Submission) { m.From = "bank" }))
	require.False(t, outs[0].Replayed)
	require.True(t, outs[1].Replayed)
	require.Equal(t, task.CodeKeyReused, outs[2].Refused.Code)
	require.False(t, outs[3].Replayed, "another sender may use the same client_msg_id")
	require.Equal(t, 3, db.Count(t, `select count(*) from messages`))
	require.Equal(t, 3, db.Count(t, `select count(*) from message_live`))
}

func TestRepeatOfDamagedMessageFailsAlone(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	again := func(key string) *messages.Submission {
		return storetest.Message(key, func(m *messages.Submission) { m.CallID = task.NewID() })
	}
	damaged := storetest.Message("damaged")
	db.MustSave(t, damaged, storetest.Message("intact"))
	db.Exec(t, `delete from message_live where id = $1`, damaged.ID)
	outs, errs := db.Messages.Submit([]*messages.Submission{again("damaged"), again("intact"), again("new")})
	require.ErrorContains(t, errs[0], "has no state")
	require.Equal(t, []error{nil, nil}, errs[1:])
	require.Equal(t, []bool{true, false}, []bool{outs[1].Replayed, outs[2].Replayed})
}

func TestSavedMessageIsReplayedEvenIfRefusedNow(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	blocked := task.Refuse(task.CodeBlocked, "blocked")
	refused := func(m *messages.Submission) { m.Refused = blocked }
	db.MustSave(t, storetest.Message("k"))
	outs := db.MustSave(t, storetest.Message("k", refused), storetest.Message("l", refused), storetest.Message("k", refused, data(`8`)))
	require.True(t, outs[0].Replayed)
	require.Equal(t, blocked, outs[1].Refused)
	require.Equal(t, task.CodeKeyReused, outs[2].Refused.Code)
	require.Equal(t, 1, db.Count(t, `select count(*) from messages`))
}

func TestConcurrentRepeatsAreSavedOnce(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	instances := []*storetest.DB{storetest.OpenAt(t, url), storetest.OpenAt(t, url)}
	for round := range 20 {
		saved := make([]bool, 12) // by call: it saved the message "b", and did not replay it
		var all sync.WaitGroup
		for i := range saved {
			all.Go(func() {
				outs, errs := instances[i%2].Messages.Submit([]*messages.Submission{storetest.Message(fmt.Sprint("b", round)), storetest.Message(fmt.Sprint("a", round))})
				saved[i] = errs[0] == nil && outs[0].Refused == nil && !outs[0].Replayed
			})
		}
		all.Wait()
		require.Len(t, slices.DeleteFunc(saved, func(saved bool) bool { return !saved }), 1)
	}
	require.Equal(t, 40, storetest.OpenAt(t, url).Count(t, `select count(*) from message_live`))
}

func TestRepeatOfUncommittedMessageIsKeyInFlight(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	tx, err := db.Owner.Begin(t.Context())
	require.NoError(t, err)
	m := storetest.Message("k")
	var batch pgx.Batch
	messages.InsertMessages.Queue(&batch, []*messages.Submission{m})
	require.NoError(t, tx.SendBatch(t.Context(), &batch).Close())
	outs, errs := db.Messages.Submit([]*messages.Submission{storetest.Message("k"), storetest.Message("other")})
	require.Equal(t, task.CodeKeyInFlight, task.CodeOf(errs[0]))
	require.NoError(t, errs[1])
	require.False(t, outs[1].Replayed)
	require.NoError(t, tx.Rollback(t.Context()))
	require.False(t, db.MustSave(t, m)[0].Replayed)
}

func TestLostCommitResponseDoesNotMakeAReplay(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	db := storetest.OpenAt(t, proxy.URL())
	require.NoError(t, db.Ping(t.Context()))
	db.MustSave(t, storetest.Message("known"))

	fired := proxy.LoseResponse(sandbox.Containing("insert into messages"))
	outs := db.MustSave(t, storetest.Message("k"), storetest.Message("known"))
	<-fired
	require.Equal(t, messages.Submitted{State: "sending"}, outs[0], "the second try of the same call is no replay")
	require.True(t, outs[1].Replayed)
	require.Equal(t, 2, db.Count(t, `select count(*) from message_live`))
}

func TestConfirmationWithLostResponseCountsOnce(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	db := storetest.OpenAt(t, proxy.URL())
	m := storetest.Message("k", func(m *messages.Submission) { m.ExpectedReceipts = 2 })
	db.MustSave(t, m)
	db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted))
	fired := proxy.LoseResponse(sandbox.Containing("commit"))
	after, err := db.Messages.Confirm(t.Context(), m.ID, storetest.ConfirmationBy("points"))
	require.NoError(t, err)
	<-fired
	require.Equal(t, "sent", after.State())
	require.Equal(t, 1, db.Count(t, `select count(*) from message_receipts`))
}

func TestFinalStateDependsOnTheAddress(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	to := func(kind msg.Kind, confirm bool) func(*messages.Submission) {
		return func(m *messages.Submission) { m.To.Kind, m.Confirm, m.MaxSends = kind, confirm, 1 }
	}
	want := map[*messages.Submission]string{
		storetest.Message("a", to(msg.Subject, false)): "sent",
		storetest.Message("b", to(msg.URL, false)):     "received",
		storetest.Message("c", to(msg.User, false)):    "sent",
	}
	db.MustSave(t, slices.Collect(maps.Keys(want))...)
	db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted))
	settlePosts(t, db, storetest.Accepted, claimPosts(t, db)...)
	for m, state := range want {
		d := db.MustMessage(t, m.ID)
		require.Equal(t, state, d.State())
		require.True(t, d.Final())
	}
	require.Zero(t, db.Count(t, `select count(*) from message_live`))
	require.Zero(t, db.Count(t, `select count(*) from reliable_messages where status <> 2 and remaining_sends = 0`), "none of them is stuck")
}
