package store

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func sentTo(caller Caller, user, key string) *NewMessage {
	return reliable(key, func(m *NewMessage) {
		m.CallerID, m.From, m.To, m.Confirm = caller.ID, caller.Name, msg.Address{Kind: msg.User, Name: user}, false
	})
}

// One sender cannot push the messages of others out of an inbox, also by way of
// another process. It goes on to send to others, and others to the same user.
func TestASenderTakesAQuarterOfAnInboxAtMost(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	bounded := func(c *Config) { c.Inbox = 100 }
	db := openAt(t, url, bounded)
	greedy, modest := Caller{ID: 1, Name: "greedy"}, Caller{ID: 2, Name: "modest"}
	taken := 0
	for n := range 40 {
		if db.take(t, greedy, sentTo(greedy, "vic", fmt.Sprint(n))) {
			taken++
		}
	}
	require.InDelta(t, 25, taken, 1, "a count may see one that is counted here too")
	require.True(t, db.take(t, greedy, sentTo(greedy, "zoe", "other")))
	require.True(t, db.take(t, modest, sentTo(modest, "vic", "1")))
	_, refused := db.AdmitMessage(t.Context(), greedy, sentTo(greedy, "vic", "refused"), true)
	require.ErrorContains(t, refused, "greedy has sent 25 messages to this user within the last 15 minutes, a quarter of what an inbox holds")
	_, refused = db.AdmitMessage(t.Context(), Caller{}, sentTo(Caller{Name: "greedy"}, "vic", "operator"), false)
	require.Nil(t, refused, "the operator is not bounded")

	another := openAt(t, url, bounded)
	n := 0
	require.Eventually(t, func() bool {
		n++
		return !another.take(t, greedy, sentTo(greedy, "vic", fmt.Sprint("again ", n)))
	}, 10*time.Second, 5*time.Millisecond, "another process finds out by the second message")
	require.LessOrEqual(t, n, 25)
	require.True(t, another.take(t, modest, sentTo(modest, "vic", "2")))
	require.True(t, another.take(t, greedy, sentTo(greedy, "zoe", "another")))
}

// An accepted message may be in an inbox and never be saved.
func TestAcceptedMessagesCountForAnInbox(t *testing.T) {
	t.Parallel()
	db, greedy := openAt(t, sandbox.NewDatabase(t), func(c *Config) { c.Inbox = 100 }), Caller{ID: 1, Name: "greedy"}
	for n := range 30 {
		admission, refused := db.AdmitMessage(t.Context(), greedy, sentTo(greedy, "vic", fmt.Sprint(n)), true)
		require.Equal(t, n >= 25, refused != nil, n)
		if refused == nil {
			admission.Accepted(int64(n))
			admission.End()
		}
	}
}

// Calls that wait for each other's end are counted before any of them is saved.
func TestMessagesToAUserThatComeTogetherDoNotExceedTheShare(t *testing.T) {
	t.Parallel()
	db, greedy := openAt(t, sandbox.NewDatabase(t), func(c *Config) { c.Inbox = 100 }), Caller{ID: 1, Name: "greedy"}
	together := func() (admitted []Admission) {
		var mu sync.Mutex
		var calls sync.WaitGroup
		for n := range 250 {
			calls.Go(func() {
				admission, refused := db.AdmitMessage(t.Context(), greedy, sentTo(greedy, "vic", fmt.Sprint(n)), false)
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
	admitted := together()
	require.Len(t, admitted, 25)
	require.True(t, db.take(t, Caller{ID: 2, Name: "modest"}, sentTo(Caller{ID: 2, Name: "modest"}, "vic", "1")))
	require.True(t, db.take(t, greedy, sentTo(greedy, "zoe", "1")))
	for n, admission := range admitted {
		if n < 20 {
			admission.Saved()
		}
		admission.End()
	}
	admitted = together()
	require.Len(t, admitted, 5, "what was not saved is free again")
	for _, admission := range admitted {
		admission.Saved()
		admission.End()
	}
	require.Empty(t, together())
}

// A message that its caller's quota refuses takes no place of the inbox.
func TestAMessageOverTheQuotaTakesNoPlaceOfAnInbox(t *testing.T) {
	t.Parallel()
	db, full := openAt(t, sandbox.NewDatabase(t), func(c *Config) { c.Inbox = 100 }), Caller{ID: 1, Name: "full", MaxWaitingMessages: new(int64(1))}
	require.True(t, db.take(t, full, sentTo(full, "vic", "1")))
	for n := range 30 {
		require.False(t, db.take(t, full, sentTo(full, "vic", fmt.Sprint("refused ", n))))
	}
	full.MaxWaitingMessages = nil
	require.True(t, db.take(t, full, sentTo(full, "vic", "2")))
}

func TestInboxSharesForgetWhatIsOldOrTooMuch(t *testing.T) {
	t.Parallel()
	s, now := &inboxShare{}, time.Now()
	s.here(now)
	s.byMinute[s.minute%inboxMinutes] = 7
	require.Equal(t, 7, s.here(now.Add(15*time.Minute)))
	require.Zero(t, s.here(now.Add(16*time.Minute)))
	require.Zero(t, s.here(now), "a clock that goes back")

	shares := &inboxShares{limit: 2500, counting: true} // no question is due
	underWay := shares.admit(inboxPair{"slow", "vic"})
	for n := range 3 * inboxPairs {
		for range 11 {
			shares.add("greedy", "vic")
		}
		shares.add("ann", fmt.Sprint(n))
		if len(shares.of) > inboxPairs {
			require.Fail(t, "too many")
		}
	}
	require.Nil(t, shares.admit(inboxPair{"greedy", "vic"}), "those of many messages stay")
	require.NotNil(t, shares.admit(inboxPair{"ann", "1"}))
	require.Same(t, underWay.share, shares.of[inboxPair{"slow", "vic"}], "as do those that have a message under way")
}

func (i *inboxShares) add(sender, user string) {
	place := i.admit(inboxPair{sender, user})
	place.keep()
	place.release()
}
