package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

var (
	refuses = msg.Result{Outcome: msg.Refused, Reason: "no stream listens on orders.paid"}
)

func TestAConfirmationCountsOnceTheSendIsRecorded(t *testing.T) {
	t.Parallel()
	db := open(t)
	m := reliable("k")
	db.mustSave(t, m)
	db.relay(t, always(isAway)) // it was stored, and the answer lost
	before := db.mustMessage(t, m.ID)
	_, err := db.ReceiveMessage(t.Context(), m.ID, addressee("points"))
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err), "repeat it")
	require.Equal(t, before, db.mustMessage(t, m.ID), "nothing changes")
	db.makeDue(t)
	db.relay(t, always(takes))
	after, err := db.ReceiveMessage(t.Context(), m.ID, addressee("points"))
	require.NoError(t, err)
	require.Equal(t, "received", after.State())
	db.makeDue(t)
	require.Zero(t, db.relay(t, always(refuses)).Rows)
	require.Equal(t, "received", db.mustMessage(t, m.ID).State())
}

func TestAConfirmationWaitsForTheRelayThatSendsTheMessage(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, other := openAt(t, url), owner(t, url)
	m := reliable("k")
	db.mustSave(t, m)
	confirmed := make(chan error, 1)
	_, err := db.RelayMessages(t.Context(), 10, func(_ context.Context, due []DueMessage) ([]msg.Result, error) {
		go func() {
			_, err := db.ReceiveMessage(context.Background(), m.ID, addressee("points"))
			confirmed <- err
		}()
		require.Eventually(t, func() bool {
			var waiting bool
			err := other.QueryRow(t.Context(), `select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())`).Scan(&waiting)
			return err == nil && waiting
		}, 5*time.Second, time.Millisecond)
		return []msg.Result{takes}, nil
	})
	require.NoError(t, err)
	require.NoError(t, <-confirmed)
	require.Equal(t, "received", db.mustMessage(t, m.ID).State())
}

func TestABrokerThatIsAwayUsesNothingUp(t *testing.T) {
	t.Parallel()
	db := open(t)
	m := reliable("k")
	db.mustSave(t, m)
	b := always(isAway)
	for range 10 {
		relayed := db.relay(t, b)
		require.WithinRange(t, relayed.Again[0], time.Now(), time.Now().Add(4*time.Second))
	}
	require.Equal(t, slices.Repeat([]string{m.send("1.1")}, 10), b.msgIDs())
	d := db.mustMessage(t, m.ID)
	require.EqualValues(t, 2, d.Remaining)
	require.Equal(t, isAway.Reason, d.LastError)
	require.Equal(t, "sending", d.State())
}

func TestWhatMetNobodyKeepsItsPlaceAheadOfWhatWasSavedLater(t *testing.T) {
	t.Parallel()
	db := open(t)
	var rows []*NewMessage
	var sends []string
	for i := range 5 {
		rows = append(rows, reliable(fmt.Sprint(i)))
		sends = append(sends, rows[i].send("1.1"))
	}
	db.mustSave(t, rows[0])
	db.mustSave(t, rows[1])
	db.mustSave(t, rows[2])
	before := db.mustMessage(t, rows[0].ID)
	relay := func(b *broker) Relayed {
		relayed, err := db.RelayMessages(t.Context(), 100, b.publish)
		require.NoError(t, err)
		return relayed
	}
	for range 3 {
		b := always(nobody)
		require.Equal(t, Relayed{Rows: 3, Away: true}, relay(b), "none is due at another time")
		require.Equal(t, sends[:3], b.msgIDs())
	}
	after := db.mustMessage(t, rows[0].ID)
	require.Equal(t, "no connection", after.LastError, "a reader sees why")
	after.LastError = ""
	require.Equal(t, before, after, "and no message was written")
	require.Equal(t, 1, db.count(t, `select count(*) from stream_pauses where xmin::text::bigint = (select min(xmin::text::bigint) from stream_pauses) and failures = 0`))

	db.mustSave(t, rows[3])
	db.mustSave(t, rows[4])
	b := always(takes)
	require.Len(t, relay(b).Again, 5)
	require.Equal(t, sends, b.msgIDs())
}

func TestARelayThatDiedBetweenPublishAndMarkSendsUnderTheSameName(t *testing.T) {
	t.Parallel()
	db := open(t)
	m := reliable("k")
	db.mustSave(t, m)
	b := always(takes)
	_, err := db.RelayMessages(t.Context(), 10, func(ctx context.Context, due []DueMessage) ([]msg.Result, error) {
		_, _ = b.publish(ctx, due)
		return nil, errors.New("killed")
	})
	require.ErrorContains(t, err, "killed")
	require.Panics(t, func() {
		_, _ = db.RelayMessages(t.Context(), 10, func(ctx context.Context, due []DueMessage) ([]msg.Result, error) {
			_, _ = b.publish(ctx, due)
			panic("killed")
		})
	})
	db.makeDue(t) // waits until the database has noticed
	_, err = db.RelayMessages(t.Context(), 10, func(ctx context.Context, due []DueMessage) ([]msg.Result, error) {
		_, _ = b.publish(ctx, due)
		return nil, nil
	})
	require.ErrorContains(t, err, "0 results for 1 messages")
	require.Equal(t, 1, db.relay(t, b).Rows)
	require.Equal(t, slices.Repeat([]string{m.send("1.1")}, 4), b.msgIDs())
	require.EqualValues(t, 1, db.mustMessage(t, m.ID).Remaining)
}

func TestWhatWasPublishedIsSettledWhenTheRelaysTimeIsUp(t *testing.T) {
	t.Parallel()
	db := open(t)
	m := reliable("k")
	db.mustSave(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := db.RelayMessages(ctx, 10, func(context.Context, []DueMessage) ([]msg.Result, error) {
		cancel()
		return []msg.Result{takes}, nil
	})
	require.NoError(t, err)
	require.Equal(t, "sent", db.mustMessage(t, m.ID).State())
}

func TestTwoRelaysAtOnceSendEachMessageOnce(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	relays := []*DB{openAt(t, url), openAt(t, url)}
	const n = 300
	var rows []*NewMessage
	for i := range n {
		rows = append(rows, reliable(fmt.Sprint(i)))
	}
	relays[0].mustSave(t, rows...)
	b := &broker{say: func(d DueMessage) msg.Result {
		return map[byte]msg.Result{0: takes, 1: refuses, 2: isAway}[d.ID[15]%3]
	}}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for {
				relayed, err := relays[i%2].RelayMessages(context.Background(), 20, b.publish)
				if err != nil || relayed.Rows == 0 && b.sent() >= n {
					return
				}
			}
		})
	}
	all.Wait()
	ids := b.msgIDs()
	slices.Sort(ids)
	require.Len(t, slices.Compact(ids), n, "one bad message holds up no other")
	for _, m := range rows {
		d := relays[0].mustMessage(t, m.ID)
		want := map[byte]struct {
			state     string
			remaining int16
			err       string
		}{0: {"sent", 1, ""}, 1: {"sending", 1, refuses.Reason}, 2: {"sending", 2, isAway.Reason}}[m.ID[15]%3]
		require.Equal(t, want.state, d.State())
		require.Equal(t, want.remaining, d.Remaining)
		require.Equal(t, want.err, d.LastError)
	}
}

func TestACallersManyStreamsLeaveTheRoomOfOthers(t *testing.T) {
	t.Parallel()
	db := open(t)
	save := func(caller int64, streams, n int) {
		db.exec(t, `with m as (
				insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
				select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), $1, 's', gen_random_uuid(), 0, 's' || stream, 't', '1', false, 5, 1
				from generate_series(1, $2::integer) stream, generate_series(1, $3::integer) returning id, destination)
			insert into message_live (id, kind, caller_id, stream, remaining_sends) select id, 0, $1, destination, 5 from m`, caller, streams, n)
	}
	save(7, 50, 4)
	save(8, 1, 120)
	b, of := always(takes), func(d DueMessage) int64 { return d.CallerID }
	db.relayDue(t, b)
	require.Equal(t, map[int64]int{7: 50, 8: 50}, byCaller(b.sends, of), "half of the batch for each")
	save(7, 250, 1)
	b.sends = nil
	db.relayDue(t, b)
	require.Equal(t, 50, byCaller(b.sends, of)[8], "also when the streams are more than the batch has room for")
	require.Less(t, byCaller(b.sends, of)[7], 90, "about half of the batch")
	for db.relayDue(t, b).More {
	}
	require.Zero(t, db.count(t, `select count(*) from message_live`), "all are sent")
}
