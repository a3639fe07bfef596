package messages

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
