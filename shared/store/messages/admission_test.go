package messages_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

func ofCaller(caller int64) func(*messages.Submission) {
	return func(m *messages.Submission) { m.CallerID = caller }
}

// trySubmit submits a message as a function does, and reports whether the quota admitted the message.
func trySubmit(t *testing.T, db *storetest.DB, caller callers.Caller, m *messages.Submission) bool {
	t.Helper()
	admission, refused := db.Messages.Admit(t.Context(), caller, m, false)
	if refused != nil {
		require.Equal(t, task.CodeQuota, refused.Code)
		require.Positive(t, refused.RetryAfter)
		return false
	}
	defer admission.End()
	db.MustSave(t, m)
	admission.Saved()
	return true
}

// waitingAtMost limits the waiting messages of each caller; 0 = no limit.
func waitingAtMost(messages, bytes int64) func(*stores.Config) {
	return func(c *stores.Config) { c.Waiting = quota.Waiting{Items: messages, Bytes: bytes} }
}

func TestQuotaLimitsWaitingMessages(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := storetest.OpenAt(t, url, waitingAtMost(3, 0))
	greedy, modest := callers.Caller{ID: 1}, callers.Caller{ID: 2}
	n := 0
	next := func(caller callers.Caller, change ...func(*messages.Submission)) *messages.Submission {
		n++
		return storetest.Message(fmt.Sprint(n), append(change, ofCaller(caller.ID))...)
	}
	awaitCount := func(db *storetest.DB) { // Admit waits for the first count only half a second
		require.Eventually(t, func() bool {
			if admission, refused := db.Messages.Admit(t.Context(), greedy, next(greedy), false); refused == nil {
				admission.End()
			}
			return !db.Messages.CountedAt(greedy.ID).IsZero()
		}, time.Minute, 10*time.Millisecond, "the messages of the caller are counted")
	}
	addresses := []func(*messages.Submission){storetest.SendTo(msg.User, "bob"), storetest.SendTo(msg.URL, "https://a.example/x"), storetest.SendTo(msg.Subject, "msg.a.b")}
	for _, address := range addresses {
		require.True(t, trySubmit(t, db, greedy, next(greedy, address)))
	}
	for range 3 {
		require.False(t, trySubmit(t, db, greedy, next(greedy)))
		require.True(t, trySubmit(t, db, callers.Caller{}, next(callers.Caller{})), "the built-in admin has no quota")
	}
	require.True(t, trySubmit(t, db, modest, next(modest)), "another caller is not refused")
	require.True(t, trySubmit(t, db, callers.Caller{ID: 1, MaxWaitingMessages: new(int64(4))}, next(greedy)), "a caller may have a limit of its own")

	another := storetest.OpenAt(t, url, waitingAtMost(3, 0))
	awaitCount(another)
	require.False(t, trySubmit(t, another, greedy, next(greedy)), "another process counts the messages that this process saved")
	require.True(t, trySubmit(t, another, modest, next(modest)))

	db.Exec(t, `update message_live set remaining_sends = 0, next_at = null where caller_id = 1`)
	another = storetest.OpenAt(t, url, waitingAtMost(3, 0))
	awaitCount(another)
	require.False(t, trySubmit(t, another, greedy, next(greedy)), "messages that wait for an operator count too")
	db.Exec(t, `delete from message_live where caller_id = 1`)
	require.Eventually(t, func() bool { return trySubmit(t, db, greedy, next(greedy)) }, time.Minute, 10*time.Millisecond, "delivered messages do not count")
}

func TestQuotaOfBytesCountsEachSend(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	sized := data(`"` + fmt.Sprintf("%098d", 1) + `"`) // 100 bytes
	limit := waitingAtMost(0, 500)
	db, caller := storetest.OpenAt(t, url, limit), callers.Caller{ID: 1}
	for i := range 5 {
		require.True(t, trySubmit(t, db, caller, storetest.Message(fmt.Sprint(i), sized, ofCaller(1))))
	}
	require.False(t, trySubmit(t, db, caller, storetest.Message("more", ofCaller(1))))
	db.Exec(t, `delete from message_live where id <> (select min(id::text)::uuid from message_live)`)
	db.Exec(t, `update message_live set send_no = 4`) // the one message that is left counts 4 times 100 bytes
	db = storetest.OpenAt(t, url, limit)
	require.True(t, trySubmit(t, db, caller, storetest.Message("fits", sized, ofCaller(1))))
	require.False(t, trySubmit(t, db, caller, storetest.Message("does not fit", sized, ofCaller(1))))
}

// A message to a URL is in no stream, so its sends leave no copies.
func TestQuotaCountsBytesOfMessageToURLOnce(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	sized := data(`"` + fmt.Sprintf("%098d", 1) + `"`) // 100 bytes
	limit := waitingAtMost(0, 200)
	db, caller := storetest.OpenAt(t, url, limit), callers.Caller{ID: 1}
	require.True(t, trySubmit(t, db, caller, storetest.Message("stuck", sized, toURL, ofCaller(1))))
	db.Exec(t, `update message_live set send_no = 5, remaining_sends = 0, next_at = null`)
	db = storetest.OpenAt(t, url, limit)
	require.True(t, trySubmit(t, db, caller, storetest.Message("fits", sized, ofCaller(1))))
	require.False(t, trySubmit(t, db, caller, storetest.Message("does not fit", sized, ofCaller(1))))
}

func TestQuotaLimitsConcurrentCalls(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, waitingAtMost(20, 0))
	var admitted atomic.Int64
	var calls sync.WaitGroup
	for i := range 100 {
		calls.Go(func() {
			m := storetest.Message(fmt.Sprint(i), ofCaller(1))
			admission, refused := db.Messages.Admit(t.Context(), callers.Caller{ID: 1}, m, false)
			if refused != nil {
				return
			}
			defer admission.End()
			if _, errs := db.Messages.Submit([]*messages.Submission{m}); errs[0] == nil {
				admitted.Add(1)
				admission.Saved()
			}
		})
	}
	calls.Wait()
	require.LessOrEqual(t, admitted.Load(), int64(20))
	require.GreaterOrEqual(t, admitted.Load(), int64(15), "a message may be counted twice: in the database and in this process")
	require.EqualValues(t, admitted.Load(), db.Count(t, `select count(*) from message_live`), "no refused message is saved")
}

func TestQuotaCountsAcceptedMessagesUntilTheyAreSaved(t *testing.T) {
	t.Parallel()
	db, caller := storetest.Open(t, waitingAtMost(3, 0)), callers.Caller{ID: 1}
	accept := func(seq int64) bool {
		admission, refused := db.Messages.Admit(t.Context(), caller, storetest.Message(fmt.Sprint(seq), ofCaller(1)), true)
		if refused == nil {
			admission.Accepted(seq)
			admission.End()
		}
		return refused == nil
	}
	for seq := range int64(3) {
		require.True(t, accept(seq+1))
	}
	before := db.Messages.CountedAt(1)
	require.Eventually(t, func() bool {
		require.False(t, accept(4), "the accepted messages count, although none is saved in the database")
		return db.Messages.CountedAt(1).After(before)
	}, time.Minute, 10*time.Millisecond)
	require.False(t, accept(4))
	db.Exec(t, `insert into accepted_messages (accept_seq, id) values (3, gen_random_uuid())`)
	require.Eventually(t, func() bool { return accept(4) }, time.Minute, 10*time.Millisecond, "accepted messages up to the saved sequence number count only if they are live, and none is")
}

func TestMessageThatWasNotSavedDoesNotCount(t *testing.T) {
	t.Parallel()
	db, caller := storetest.Open(t, waitingAtMost(1, 0)), callers.Caller{ID: 1}
	for range 5 {
		admission, refused := db.Messages.Admit(t.Context(), caller, storetest.Message("k", ofCaller(1)), false)
		require.Nil(t, refused)
		admission.End()
	}
	require.True(t, trySubmit(t, db, caller, storetest.Message("k", ofCaller(1))))
}

// Opening a connection takes longer than all queries for the first message of a process, so they must share one connection.
func TestFirstMessageOpensOneConnection(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, waitingAtMost(3, 0), func(c *stores.Config) { c.StreamBytes = map[string]int64{msg.StreamMessages: 1000} })
	_, err := db.Callers.ByName(t.Context(), "nobody", false)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	_, err = db.Admin.Blocked(t.Context(), "text")
	require.NoError(t, err)
	m := storetest.Message("k", ofCaller(1))
	admission, refused := db.Messages.Admit(t.Context(), callers.Caller{ID: 1}, m, false)
	require.Nil(t, refused)
	defer admission.End()
	_, errs := db.Messages.Submit([]*messages.Submission{m})
	require.NoError(t, errs[0])
	require.EqualValues(t, 1, db.Stats()["hot"].NewConnsCount())
}

func TestCallerOverItsShareOfAStreamIsRefused(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	sizes := func(c *stores.Config) {
		c.StreamBytes = map[string]int64{msg.StreamUsers: 12_000, msg.StreamMessages: 100_000}
	}
	db := storetest.OpenAt(t, url, sizes)
	flood := func(caller int64, n int) {
		for i := range n {
			db.MustSave(t, storetest.Message(fmt.Sprint(caller, i, time.Now()), ofCaller(caller), storetest.SendTo(msg.User, fmt.Sprint("user", i)), data(fmt.Sprintf(`"%0498d"`, i)), withoutConfirm))
		}
		for db.RelayDue(t, storetest.Always(storetest.Accepted)).More {
		}
	}
	isOverShare := func(db *storetest.DB, caller int64) func() bool {
		return func() bool {
			_, refused := db.Messages.Admit(t.Context(), callers.Caller{ID: caller}, storetest.Message("x", storetest.SendTo(msg.User, "bob"), ofCaller(caller)), false)
			return refused != nil
		}
	}
	flood(1, 6)
	require.Equal(t, 6000, db.Count(t, `select sum(bytes) from stream_usage where caller_id = 1 and stream = 'USERS'`))
	flood(2, 2)
	require.Eventually(t, isOverShare(db, 1), 10*time.Second, 10*time.Millisecond)
	require.False(t, isOverShare(db, 2)(), "other callers are not refused")
	_, refused := db.Messages.Admit(t.Context(), callers.Caller{ID: 1}, storetest.Message("x", storetest.SendTo(msg.Subject, "msg.a"), ofCaller(1)), false)
	require.Nil(t, refused, "messages to other streams are not refused")
	another := storetest.OpenAt(t, url, sizes)
	require.Eventually(t, isOverShare(another, 1), 10*time.Second, 10*time.Millisecond, "another process reads the usage from the database")
	db.Exec(t, `update stream_usage set since = since - interval '16 minutes'`)
	require.Eventually(t, func() bool { return !isOverShare(db, 1)() }, time.Minute, 10*time.Millisecond)
}

// However many messages of one caller wait, the message of another caller is in the next batch.
func TestRelayDividesABatchAmongCallers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.InsertMessages(t, 5000)
	db.Exec(t, `update messages set caller_id = 1`)
	db.Exec(t, `update message_live set caller_id = 1`)
	b := storetest.Always(storetest.Accepted)
	for i := range 5 {
		modest := storetest.Message(fmt.Sprint(i), ofCaller(2), storetest.SendTo(msg.User, "carol"), withoutConfirm)
		db.MustSave(t, modest)
		relayed := db.RelayDue(t, b)
		require.Equal(t, "sent", db.MustMessage(t, modest.ID).State())
		require.Equal(t, 51, relayed.Rows, "half of the batch for caller 1, and the one message of caller 2")
		require.True(t, relayed.More)
	}
	for caller := range int64(150) { // more callers than a batch has rows
		db.MustSave(t, storetest.Message("many", ofCaller(100+caller), storetest.SendTo(msg.User, "dave"), withoutConfirm))
	}
	relayed := db.RelayDue(t, b)
	require.True(t, relayed.More)
	require.Less(t, relayed.Rows, 150)
	for db.Count(t, `select count(*) from message_live where caller_id <> 1`) > 0 {
		require.True(t, db.RelayDue(t, b).More)
	}
}

func sentTo(caller callers.Caller, user, key string) *messages.Submission {
	return storetest.Message(key, func(m *messages.Submission) {
		m.CallerID, m.From, m.To, m.Confirm = caller.ID, caller.Name, msg.Address{Kind: msg.User, Name: user}, false
	})
}

// One sender cannot push the messages of others out of an inbox, not even through another process.
// The sender can still send to other users, and other senders can still send to the same user.
func TestSenderFillsAtMostAQuarterOfAnInbox(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	bounded := func(c *stores.Config) { c.Inbox = 100 }
	db := storetest.OpenAt(t, url, bounded)
	greedy, modest := callers.Caller{ID: 1, Name: "greedy"}, callers.Caller{ID: 2, Name: "modest"}
	admitted := 0
	for n := range 40 {
		if trySubmit(t, db, greedy, sentTo(greedy, "vic", fmt.Sprint(n))) {
			admitted++
		}
	}
	require.InDelta(t, 25, admitted, 1, "a message may be counted twice: in the database and in this process")
	require.True(t, trySubmit(t, db, greedy, sentTo(greedy, "zoe", "other")))
	require.True(t, trySubmit(t, db, modest, sentTo(modest, "vic", "1")))
	_, refused := db.Messages.Admit(t.Context(), greedy, sentTo(greedy, "vic", "refused"), true)
	require.ErrorContains(t, refused, "greedy has sent 25 messages to this user within the last 15 minutes, a quarter of what an inbox holds")
	_, refused = db.Messages.Admit(t.Context(), callers.Caller{}, sentTo(callers.Caller{Name: "greedy"}, "vic", "operator"), false)
	require.Nil(t, refused, "the built-in admin is not limited")

	another := storetest.OpenAt(t, url, bounded)
	n := 0
	require.Eventually(t, func() bool {
		n++
		return !trySubmit(t, another, greedy, sentTo(greedy, "vic", fmt.Sprint("again ", n)))
	}, time.Minute, 5*time.Millisecond, "another process reads the count from the database")
	require.LessOrEqual(t, n, 26, "at most 25 messages are admitted before one is refused")
	require.True(t, trySubmit(t, another, modest, sentTo(modest, "vic", "2")))
	require.True(t, trySubmit(t, another, greedy, sentTo(greedy, "zoe", "another")))
}

// An accepted message may be delivered to an inbox even if it is never saved.
func TestAcceptedMessagesCountForAnInbox(t *testing.T) {
	t.Parallel()
	db, greedy := storetest.Open(t, func(c *stores.Config) { c.Inbox = 100 }), callers.Caller{ID: 1, Name: "greedy"}
	for n := range 30 {
		admission, refused := db.Messages.Admit(t.Context(), greedy, sentTo(greedy, "vic", fmt.Sprint(n)), true)
		require.Equal(t, n >= 25, refused != nil, n)
		if refused == nil {
			admission.Accepted(int64(n))
			admission.End()
		}
	}
}

// A message that is rejected or saved already may be in the inbox again, because it was delivered before SaveAccepted looked for
// the saved one.
func TestUnsavedMessagesCountForAnInboxInAnotherProcess(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	bounded := func(c *stores.Config) { c.Inbox = 100 }
	db, another := storetest.OpenAt(t, url, bounded), storetest.OpenAt(t, url, bounded)
	greedy := callers.Caller{ID: 1, Name: "greedy"}
	db.MustSave(t, sentTo(greedy, "zoe", "used"))
	db.MustSave(t, sentTo(greedy, "zoe", "repeated"))
	var unsaved []*messages.Submission
	for n := range 26 {
		m := sentTo(greedy, "vic", "repeated")
		if n < 13 {
			m = storetest.Message("used", data(`"other"`), func(other *messages.Submission) {
				other.CallerID, other.From, other.To, other.Confirm = m.CallerID, m.From, m.To, false
			})
		}
		m.AcceptSeq, m.AcceptedAt, m.Producer = int64(n+1), time.Now(), "host"
		unsaved = append(unsaved, m)
	}
	out := mustSaveAccepted(t, db, unsaved...)
	require.Equal(t, messages.SaveRejected, out[0])
	require.Equal(t, messages.SavedBefore, out[13])
	mustSaveAccepted(t, db, unsaved...)
	require.Equal(t, 26, db.Count(t, `select sum(messages) from inbox_unsaved`), "the same sequence number is not counted again")

	n := 0
	require.Eventually(t, func() bool {
		n++
		return !trySubmit(t, another, greedy, sentTo(greedy, "vic", fmt.Sprint(n)))
	}, time.Minute, 50*time.Millisecond, "another process reads the count from the database")
	require.LessOrEqual(t, n, 25)
	require.True(t, trySubmit(t, another, greedy, sentTo(greedy, "zoe", "another")))
}

// Concurrent calls are counted before any of their messages is saved.
func TestConcurrentMessagesDoNotExceedInboxShare(t *testing.T) {
	t.Parallel()
	db, greedy := storetest.Open(t, func(c *stores.Config) { c.Inbox = 100 }), callers.Caller{ID: 1, Name: "greedy"}
	admitConcurrently := func() (admitted []messages.Admission) {
		var mu sync.Mutex
		var calls sync.WaitGroup
		for n := range 250 {
			calls.Go(func() {
				admission, refused := db.Messages.Admit(t.Context(), greedy, sentTo(greedy, "vic", fmt.Sprint(n)), false)
				if refused == nil {
					mu.Lock()
					defer mu.Unlock()
					admitted = append(admitted, admission)
				}
			})
		}
		calls.Wait()
		return admitted
	}
	admitted := admitConcurrently()
	require.Len(t, admitted, 25)
	require.True(t, trySubmit(t, db, callers.Caller{ID: 2, Name: "modest"}, sentTo(callers.Caller{ID: 2, Name: "modest"}, "vic", "1")))
	require.True(t, trySubmit(t, db, greedy, sentTo(greedy, "zoe", "1")))
	for n, admission := range admitted {
		if n < 20 {
			admission.Saved()
		}
		admission.End()
	}
	admitted = admitConcurrently()
	require.Len(t, admitted, 5, "messages that were not saved do not count")
	for _, admission := range admitted {
		admission.Saved()
		admission.End()
	}
	require.Empty(t, admitConcurrently())
}

func TestMessageOverQuotaDoesNotCountForInbox(t *testing.T) {
	t.Parallel()
	db, full := storetest.Open(t, func(c *stores.Config) { c.Inbox = 100 }), callers.Caller{ID: 1, Name: "full", MaxWaitingMessages: new(int64(1))}
	require.True(t, trySubmit(t, db, full, sentTo(full, "vic", "1")))
	for n := range 30 {
		require.False(t, trySubmit(t, db, full, sentTo(full, "vic", fmt.Sprint("refused ", n))))
	}
	full.MaxWaitingMessages = nil
	require.True(t, trySubmit(t, db, full, sentTo(full, "vic", "2")))
}
