package messages_test

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
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

var refusedByBroker = msg.Result{Outcome: msg.Refused, Reason: "no stream listens on orders.paid"}

func TestConfirmationCountsOnlyAfterTheSendIsRecorded(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	m := storetest.Message("k")
	db.MustSave(t, m)
	// The relay does not record a send with this result. But the subject may be full because it has stored this message and
	// the response was lost, so the receiver may have the message.
	db.MakeDueAndRelay(t, storetest.Always(storetest.SubjectFull))
	before := db.MustMessage(t, m.ID)
	_, err := db.Messages.Confirm(t.Context(), m.ID, storetest.ConfirmationBy("points"))
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err), "the receiver must confirm again")
	require.Equal(t, task.CodeServerBusy, task.CodeOf(db.Messages.AwaitSend(t.Context(), m.ID)))
	require.Equal(t, before, db.MustMessage(t, m.ID), "the message does not change")
	db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted))
	require.NoError(t, db.Messages.AwaitSend(t.Context(), m.ID))
	require.Equal(t, "received", mustConfirm(t, db, m.ID, "points"))
	require.Zero(t, db.MakeDueAndRelay(t, storetest.Always(refusedByBroker)).Rows)
	require.Equal(t, "received", db.MustMessage(t, m.ID).State())
}

func TestConfirmationWaitsForTheRelayOfItsMessage(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	m := storetest.Message("k")
	db.MustSave(t, m)
	confirmed := make(chan error, 1)
	_, err := db.Messages.Relay(t.Context(), 10, messages.Held{}, func(_ context.Context, due []messages.Due) ([]msg.Result, error) {
		go func() {
			_, err := db.Messages.Confirm(context.Background(), m.ID, storetest.ConfirmationBy("points"))
			confirmed <- err
		}()
		db.AwaitLockWait(t)
		return []msg.Result{storetest.Accepted}, nil
	})
	require.NoError(t, err)
	require.NoError(t, <-confirmed)
	require.Equal(t, "received", db.MustMessage(t, m.ID).State())
}

// A bodiless message is a row of message_live without its row of messages. Only a compromised function writes one.
const insertBodilessSQL = `insert into message_live (id, remaining_sends, kind, stream, destination_key, caller_id, next_at)
	select gen_random_uuid(), 1, $1, $2, $3, 0, '1970-01-01' from generate_series(1, 3000)`

func TestRelayRemovesBodilessMessages(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	intact := storetest.Message("intact", storetest.SendTo(msg.User, "bob"), withoutConfirm)
	db.MustSave(t, intact)
	db.Exec(t, insertBodilessSQL, msg.User, msg.StreamUsers, nil)
	b := storetest.Always(storetest.Accepted)
	for db.RelayDue(t, b).More {
	}
	require.Equal(t, []string{storetest.MsgID(intact, "1.1")}, b.MsgIDs())
	require.Zero(t, db.Count(t, `select count(*) from message_live`))
}

// Only a compromised function writes a live row of a final message.
func TestRelayRemovesLiveRowOfFinalMessage(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSave(t, storetest.Message("final", withoutConfirm))
	b := storetest.Always(storetest.Accepted)
	db.MakeDueAndRelay(t, b)
	db.Exec(t, `insert into message_live (id, status, remaining_sends, kind, stream, bytes, next_at) select id, 1, 3, kind, 'MESSAGES', 2147483647, now() from messages`)
	require.True(t, db.RelayDue(t, b).More, "its bytes fill a batch, so more rows may be due")
	require.False(t, db.RelayDue(t, b).More)
	require.Zero(t, db.Count(t, `select count(*) from message_live`))
}

// A compromised function may write any text.
func TestInvalidDataIsReadAsJSONString(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	saveStuck(t, db, "s1")
	db.Exec(t, `update messages set data = '{"a'`)
	list, _, err := db.Messages.ListStuck(t.Context(), msg.Sent, 0, task.ID{}, 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.JSONEq(t, `"{\"a"`, string(list[0].Data))
}

func TestClaimPostsRemovesBodilessMessages(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	intact := storetest.Message("intact", toURL)
	db.MustSave(t, intact)
	db.Exec(t, insertBodilessSQL, msg.URL, "", "0 shop.example")
	posts := claimPosts(t, db)
	require.Len(t, posts, 1)
	require.Equal(t, intact.ID, posts[0].ID)
	require.Zero(t, db.Count(t, `select count(*) from message_live where next_at <= now()`), "every row is leased or removed")
	db.MakeDue(t)
	claimPosts(t, db)
	require.Equal(t, 1, db.Count(t, `select count(*) from message_live`), "the second claim removes the leased bodiless rows")
}

func TestMessageThatIsNeitherLiveNorFinalIsNotFound(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	m := storetest.Message("k")
	db.MustSave(t, m)
	db.Exec(t, `delete from message_live`)
	_, err := db.Messages.Confirm(t.Context(), m.ID, storetest.ConfirmationBy("points"))
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}

func TestFullSubjectUsesNoSends(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	m := storetest.Message("k")
	db.MustSave(t, m)
	b := storetest.Always(storetest.SubjectFull)
	for range 10 {
		relayed := db.MakeDueAndRelay(t, b)
		require.WithinRange(t, relayed.NextTries[0], time.Now(), time.Now().Add(4*time.Second))
	}
	require.Equal(t, slices.Repeat([]string{storetest.MsgID(m, "1.1")}, 10), b.MsgIDs())
	d := db.MustMessage(t, m.ID)
	require.EqualValues(t, 2, d.Remaining)
	require.Equal(t, storetest.SubjectFull.Reason, d.LastError)
	require.Equal(t, "sending", d.State())
}

func TestMessagesKeepTheirOrderWhileBrokerIsUnavailable(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var rows []*messages.Submission
	var sends []string
	for i := range 5 {
		rows = append(rows, storetest.Message(fmt.Sprint(i)))
		sends = append(sends, storetest.MsgID(rows[i], "1.1"))
	}
	for _, m := range rows[:3] {
		db.MustSave(t, m)
	}
	before := db.MustMessage(t, rows[0].ID)
	var writers []int // after each relay: the transaction that wrote the row of stream_pauses
	for range 3 {
		b := storetest.Always(storetest.NoBroker)
		require.Equal(t, store.Relayed{Rows: 3, BrokerUnavailable: true}, db.RelayDue(t, b), "there are no NextTries, because no message gets another due time")
		require.Equal(t, sends[:3], b.MsgIDs())
		writers = append(writers, db.Count(t, `select xmin::text::bigint from stream_pauses where failures = 0`))
	}
	require.Equal(t, slices.Repeat(writers[:1], 3), writers, "the row of stream_pauses is not written again for the same reason")
	after := db.MustMessage(t, rows[0].ID)
	require.Equal(t, "no connection", after.LastError, "a message shows the reason in stream_pauses")
	after.LastError = ""
	require.Equal(t, before, after, "no row of a message was updated")

	db.MustSave(t, rows[3])
	db.MustSave(t, rows[4])
	b := storetest.Always(storetest.Accepted)
	require.Len(t, db.RelayDue(t, b).NextTries, 5)
	require.Equal(t, sends, b.MsgIDs())
}

func TestSendAfterCrashUsesTheSameMsgID(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	m := storetest.Message("k")
	db.MustSave(t, m)
	b := storetest.Always(storetest.Accepted)
	_, err := db.Messages.Relay(t.Context(), 10, messages.Held{}, func(ctx context.Context, due []messages.Due) ([]msg.Result, error) {
		_, _ = b.Publish(ctx, due)
		return nil, errors.New("killed")
	})
	require.ErrorContains(t, err, "killed")
	require.Panics(t, func() {
		_, _ = db.Messages.Relay(t.Context(), 10, messages.Held{}, func(ctx context.Context, due []messages.Due) ([]msg.Result, error) {
			_, _ = b.Publish(ctx, due)
			panic("killed")
		})
	})
	db.MakeDue(t) // waits until the database has rolled back
	_, err = db.Messages.Relay(t.Context(), 10, messages.Held{}, func(ctx context.Context, due []messages.Due) ([]msg.Result, error) {
		_, _ = b.Publish(ctx, due)
		return nil, nil
	})
	require.ErrorContains(t, err, "0 results for 1 messages")
	require.Equal(t, 1, db.MakeDueAndRelay(t, b).Rows)
	require.Equal(t, slices.Repeat([]string{storetest.MsgID(m, "1.1")}, 4), b.MsgIDs())
	require.EqualValues(t, 1, db.MustMessage(t, m.ID).Remaining)
}

func TestResultsAreRecordedAfterContextIsCancelled(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	m := storetest.Message("k")
	db.MustSave(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := db.Messages.Relay(ctx, 10, messages.Held{}, func(context.Context, []messages.Due) ([]msg.Result, error) {
		cancel()
		return []msg.Result{storetest.Accepted}, nil
	})
	require.NoError(t, err)
	require.Equal(t, "sent", db.MustMessage(t, m.ID).State())
}

func TestConcurrentRelaysSendEachMessageOnce(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	stores := []*storetest.DB{storetest.OpenAt(t, url), storetest.OpenAt(t, url)}
	const n = 300
	var rows []*messages.Submission
	for i := range n {
		rows = append(rows, storetest.Message(fmt.Sprint(i)))
	}
	stores[0].MustSave(t, rows...)
	b := &storetest.Broker{Respond: func(d messages.Due) msg.Result {
		return map[byte]msg.Result{0: storetest.Accepted, 1: refusedByBroker, 2: storetest.SubjectFull}[d.ID[15]%3]
	}}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for {
				relayed, err := stores[i%2].Messages.Relay(context.Background(), 20, messages.Held{}, b.Publish)
				if err != nil || relayed.Rows == 0 && b.Sent() >= n {
					return
				}
			}
		})
	}
	all.Wait()
	ids := b.MsgIDs()
	require.Len(t, ids, n, "no message is published twice")
	slices.Sort(ids)
	require.Len(t, slices.Compact(ids), n, "every message is published, although others are refused")
	for _, m := range rows {
		d := stores[0].MustMessage(t, m.ID)
		want := map[byte]struct {
			state     string
			remaining int16
			err       string
		}{0: {"sent", 1, ""}, 1: {"sending", 1, refusedByBroker.Reason}, 2: {"sending", 2, storetest.SubjectFull.Reason}}[m.ID[15]%3]
		require.Equal(t, want.state, d.State())
		require.Equal(t, want.remaining, d.Remaining)
		require.Equal(t, want.err, d.LastError)
	}
}

func TestManyStreamsOfACallerDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	save := func(caller int64, streams, perStream int) {
		db.Exec(t, `with m as (
				insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
				select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), $1, 's', gen_random_uuid(), 0, 's' || stream, 't', '1', false, 5, 1
				from generate_series(1, $2::integer) stream, generate_series(1, $3::integer) returning id, destination)
			insert into message_live (id, kind, caller_id, stream, remaining_sends) select id, 0, $1, destination, 5 from m`, caller, streams, perStream)
	}
	save(7, 50, 4)
	save(8, 1, 120)
	b, caller := storetest.Always(storetest.Accepted), func(d messages.Due) int64 { return d.CallerID }
	db.RelayDue(t, b)
	require.Equal(t, map[int64]int{7: 50, 8: 50}, storetest.ByCaller(b.Sends, caller), "half of the batch for each")
	save(7, 250, 1)
	b.Sends = nil
	db.RelayDue(t, b)
	require.Equal(t, 50, storetest.ByCaller(b.Sends, caller)[8], "even if there are more streams than the batch has rows")
	require.Less(t, storetest.ByCaller(b.Sends, caller)[7], 90, "about half of the batch")
	for db.RelayDue(t, b).More {
	}
	require.Zero(t, db.Count(t, `select count(*) from message_live`), "all are sent")
}
