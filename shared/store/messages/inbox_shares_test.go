package messages

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestInboxSharesForgetOldMessagesAndSmallPairs(t *testing.T) {
	t.Parallel()
	s, now := &inboxShare{}, time.Now()
	s.countRecent(now)
	s.byMinute[s.minute%inboxMinutes] = 7
	require.Equal(t, 7, s.countRecent(now.Add(15*time.Minute)))
	require.Zero(t, s.countRecent(now.Add(16*time.Minute)))
	require.Zero(t, s.countRecent(now), "if the clock goes back, removed minutes stay removed")

	shares := &inboxShares{limit: 2500, counting: true} // counting, so that no query starts
	inFlight, _ := shares.admit(inboxPair{"slow", "vic"}, false)
	for n := range 3 * inboxPairs {
		for range 11 {
			shares.add("greedy", "vic")
		}
		shares.add("ann", fmt.Sprint(n))
		if len(shares.byPair) > inboxPairs {
			require.Fail(t, "too many pairs are kept")
		}
	}
	greedy, _ := shares.admit(inboxPair{"greedy", "vic"}, false)
	require.Nil(t, greedy, "a pair with many messages is kept")
	ann, _ := shares.admit(inboxPair{"ann", "1"}, false)
	require.NotNil(t, ann)
	require.Same(t, inFlight.share, shares.byPair[inboxPair{"slow", "vic"}], "a pair with a message in flight is kept")
}

func (i *inboxShares) add(sender, user string) {
	reservation, _ := i.admit(inboxPair{sender, user}, false)
	reservation.keep()
	reservation.release()
}

// Messages that are accepted and not saved yet are not in the count of the database: through many processes, a sender could
// fill an inbox before they are counted.
func TestBurstOfAcceptedMessagesToAUserIsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shares := &inboxShares{limit: 2500, counting: true} // counting, so that no query starts
		pair := inboxPair{"greedy", "vic"}
		for range 156 {
			r, _ := shares.admit(pair, true)
			require.NotNil(t, r)
			r.keep()
		}
		r, burst := shares.admit(pair, true)
		require.Nil(t, r)
		require.True(t, burst)
		require.ErrorContains(t, shares.refuse("greedy", burst), "greedy has sent 156 messages with ack accepted to this user within a second")
		saved, _ := shares.admit(pair, false)
		require.NotNil(t, saved, "a message that is saved at once is counted by all processes")
		other, _ := shares.admit(inboxPair{"greedy", "zoe"}, true)
		require.NotNil(t, other)
		time.Sleep(time.Second)
		r, _ = shares.admit(pair, true)
		require.NotNil(t, r, "in the next second")
	})
}
