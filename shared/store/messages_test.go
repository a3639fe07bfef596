package store

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func data(text string) func(*NewMessage) { return func(m *NewMessage) { m.Data = []byte(text) } }

func TestAMessageLivesFromSubmitThroughTheRelayToItsConfirmation(t *testing.T) {
	t.Parallel()
	for name, pooler := range map[string]bool{"directly": false, "as behind a pooler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wholeMessageLife(t, openAt(t, sandbox.NewDatabase(t), func(c *Config) { c.Pooler = pooler }))
		})
	}
}

func wholeMessageLife(t *testing.T, db *DB) {
	ctx := t.Context()
	sentAt := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := reliable("k", func(m *NewMessage) {
		m.SentAt, m.Exchange, m.RoutingKey, m.ExpectedReceipts = sentAt, "orders", "paid", 2
	})
	require.Equal(t, []SavedMessage{{State: "sending"}}, db.mustSave(t, m))
	d := db.mustMessage(t, m.ID)
	require.Equal(t, `{"order": 7, "b":1e400}`, string(d.Data), "as it was sent")
	require.Equal(t, sentAt, d.SentAt.UTC())
	require.Equal(t, m.To, d.To())
	require.Equal(t, 1, db.count(t, `select count(*) from reliable_messages where id = $1 and exchange_name = 'orders' and routing_key = 'paid'
		and content = '{"order": 7, "b":1e400}' and remaining_sends = 2 and status = 0`, m.ID))

	b := always(takes)
	relayed, err := db.RelayMessages(ctx, 100, b.publish)
	require.NoError(t, err)
	require.Equal(t, 1, relayed.Rows)
	require.WithinRange(t, relayed.Again[0], time.Now().Add(7*time.Second), time.Now().Add(12*time.Second))
	require.Equal(t, []string{m.send("1.1")}, b.msgIDs())
	require.Equal(t, "order.paid.v1", b.sends[0].Type)
	require.Equal(t, "sent", db.mustMessage(t, m.ID).State())
	relayed, err = db.RelayMessages(ctx, 100, b.publish)
	require.NoError(t, err)
	require.Zero(t, relayed.Rows, "not before its time")

	for range 2 {
		after, err := db.ReceiveMessage(ctx, m.ID, addressee("points"))
		require.NoError(t, err)
		require.Equal(t, "sent", after.State(), "one consumer counts once")
	}
	after, err := db.ReceiveMessage(ctx, m.ID, addressee("stock"))
	require.NoError(t, err)
	require.Equal(t, "received", after.State())
	_, err = db.ReceiveMessage(ctx, m.ID, addressee("late"))
	require.NoError(t, err)
	d = db.mustMessage(t, m.ID)
	require.Equal(t, []string{"points", "stock", "late"}, column(d.Receipts, func(r Receipt) string { return r.Consumer }))
	require.EqualValues(t, 1, d.Receipts[0].SendNo)
	require.WithinDuration(t, time.Now(), d.Receipts[0].ConfirmedAt, time.Minute)
	require.Equal(t, "stock", d.FinishedBy)
	require.Equal(t, 0, db.count(t, `select count(*) from message_live`))
	require.Equal(t, 1, db.count(t, `select count(*) from reliable_messages where status = 2 and remaining_sends = 1`))
	require.Zero(t, db.relay(t, b).Rows)

	_, err = db.ReceiveMessage(ctx, task.NewID(), addressee("points"))
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	_, err = db.Message(ctx, task.NewID())
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}

func TestTheSameMessageIsSavedOnceAndAnotherUnderItsNameRefused(t *testing.T) {
	t.Parallel()
	db := open(t)
	db.mustSave(t, reliable("k"))
	require.Equal(t, []SavedMessage{{State: "sending", Replayed: true}}, db.mustSave(t, reliable("k")))
	db.relay(t, always(takes))
	require.Equal(t, []SavedMessage{{State: "sent", Status: msg.Sent, Replayed: true}}, db.mustSave(t, reliable("k")), "a replay tells the state of now")

	other := db.mustSave(t, reliable("k", data(`8`)))[0]
	require.Equal(t, task.CodeKeyReused, other.Refused.Code)
	outs := db.mustSave(t, reliable("l"), reliable("l"), reliable("l", data(`8`)), reliable("k", func(m *NewMessage) { m.From = "bank" }))
	require.False(t, outs[0].Replayed)
	require.True(t, outs[1].Replayed)
	require.Equal(t, task.CodeKeyReused, outs[2].Refused.Code)
	require.False(t, outs[3].Replayed, "a name belongs to its sender")
	require.Equal(t, 3, db.count(t, `select count(*) from messages`))
	require.Equal(t, 3, db.count(t, `select count(*) from message_live`))
}

func TestWhatWasSavedOnceIsAReplayEvenWhenItIsRefusedNow(t *testing.T) {
	t.Parallel()
	db := open(t)
	blocked := task.Refuse(task.CodeBlocked, "blocked")
	refused := func(m *NewMessage) { m.Refused = blocked }
	db.mustSave(t, reliable("k"))
	outs := db.mustSave(t, reliable("k", refused), reliable("l", refused), reliable("k", refused, data(`8`)))
	require.True(t, outs[0].Replayed)
	require.Equal(t, blocked, outs[1].Refused)
	require.Equal(t, task.CodeKeyReused, outs[2].Refused.Code)
	require.Equal(t, 1, db.count(t, `select count(*) from messages`))
}

func TestTheSameMessageAtTheSameMomentIsSavedOnce(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	doors := []*DB{openAt(t, url), openAt(t, url)}
	for round := range 20 {
		first := make([]bool, 12)
		var all sync.WaitGroup
		for i := range first {
			all.Go(func() {
				outs, errs := doors[i%2].SubmitMessages([]*NewMessage{reliable(fmt.Sprint("b", round)), reliable(fmt.Sprint("a", round))})
				first[i] = errs[0] == nil && outs[0].Refused == nil && !outs[0].Replayed
			})
		}
		all.Wait()
		firsts := slices.DeleteFunc(first, func(is bool) bool { return !is })
		require.Len(t, firsts, 1)
	}
	require.Equal(t, 40, openAt(t, url).count(t, `select count(*) from message_live`))
}

func TestAMessageInFlightElsewhereIsTold(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, slow := openAt(t, url), owner(t, url)
	tx, err := slow.Begin(t.Context())
	require.NoError(t, err)
	m := reliable("k")
	_, err = tx.Exec(t.Context(), insertMessagesSQL, messageColumns([]*NewMessage{m})...)
	require.NoError(t, err)
	outs, errs := db.SubmitMessages([]*NewMessage{reliable("k"), reliable("bystander")})
	require.Equal(t, task.CodeKeyInFlight, task.CodeOf(errs[0]))
	require.NoError(t, errs[1])
	require.False(t, outs[1].Replayed)
	require.NoError(t, tx.Rollback(t.Context()))
	require.False(t, db.mustSave(t, m)[0].Replayed)
}

func TestASavedMessageWhoseAnswerWasLostIsRecognised(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	db := openAt(t, proxy.URL())
	require.NoError(t, db.Ping(t.Context()))
	db.mustSave(t, reliable("known"))

	fired := proxy.LoseAnswer(sandbox.Containing("insert into messages"))
	outs := db.mustSave(t, reliable("k"), reliable("known"))
	<-fired
	require.Equal(t, SavedMessage{State: "sending"}, outs[0], "the caller made one call")
	require.True(t, outs[1].Replayed)
	require.Equal(t, 2, db.count(t, `select count(*) from message_live`))
}

func TestAConfirmationWhoseAnswerWasLostCountsOnce(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	db := openAt(t, proxy.URL())
	m := reliable("k", func(m *NewMessage) { m.ExpectedReceipts = 2 })
	db.mustSave(t, m)
	db.relay(t, always(takes))
	fired := proxy.LoseAnswer(sandbox.Containing("commit"))
	after, err := db.ReceiveMessage(t.Context(), m.ID, addressee("points"))
	require.NoError(t, err)
	<-fired
	require.Equal(t, "sent", after.State())
	require.Equal(t, 1, db.count(t, `select count(*) from message_receipts`))
}

func TestTheEndStateFollowsTheAddress(t *testing.T) {
	t.Parallel()
	db := open(t)
	to := func(kind msg.Kind, confirm bool) func(*NewMessage) {
		return func(m *NewMessage) { m.To.Kind, m.Confirm, m.MaxSends = kind, confirm, 1 }
	}
	want := map[*NewMessage]string{
		reliable("a", to(msg.Subject, false)): "sent",
		reliable("b", to(msg.URL, false)):     "received",
		reliable("c", to(msg.User, false)):    "sent",
	}
	db.mustSave(t, slices.Collect(maps.Keys(want))...)
	db.relay(t, always(takes))
	db.postAll(t, msg.Result{Outcome: msg.Taken})
	for m, state := range want {
		d := db.mustMessage(t, m.ID)
		require.Equal(t, state, d.State())
		require.True(t, d.Final())
	}
	require.Zero(t, db.count(t, `select count(*) from message_live`))
	require.Zero(t, db.count(t, `select count(*) from reliable_messages where status <> 2 and remaining_sends = 0`), "none of them is stuck")
}
