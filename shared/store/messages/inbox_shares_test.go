package messages

import (
	"fmt"
	"testing"
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

	shares := &inboxShares{limit: 2500, counting: true} // so that no query starts
	slow := shares.admit(inboxPair{"slow", "vic"})
	for n := range 3 * inboxPairs {
		for range 11 {
			shares.add("greedy", "vic")
		}
		shares.add("ann", fmt.Sprint(n))
		if len(shares.byPair) > inboxPairs {
			require.Fail(t, "too many pairs are kept")
		}
	}
	require.Nil(t, shares.admit(inboxPair{"greedy", "vic"}), "a pair with many messages is kept")
	require.NotNil(t, shares.admit(inboxPair{"ann", "1"}))
	require.Same(t, slow.share, shares.byPair[inboxPair{"slow", "vic"}], "a pair with a message in flight is kept")
}

func (i *inboxShares) add(sender, user string) {
	reservation := i.admit(inboxPair{sender, user})
	reservation.keep()
	reservation.release()
}
