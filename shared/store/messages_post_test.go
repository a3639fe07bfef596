package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// wide has room for all that these tests post.
var wide = Places{All: 100, Caller: 100, Lane: 16}

// postAll claims what is due for URLs and settles all of it alike.
func (db *DB) postAll(t *testing.T, r msg.Result) []time.Time {
	t.Helper()
	posts, err := db.ClaimPosts(t.Context(), wide, nil, time.Minute)
	require.NoError(t, err)
	var posted []Posted
	for _, p := range posts {
		posted = append(posted, Posted{p, r})
	}
	again, err := db.SettlePosts(t.Context(), posted)
	require.NoError(t, err)
	return again
}

func toURL(m *NewMessage) {
	m.To, m.Confirm = msg.Address{Kind: msg.URL, Name: "https://shop.example/in"}, false
}

func TestAMessageToAURLIsInOneHandUntilItsLeaseEnds(t *testing.T) {
	t.Parallel()
	db := open(t)
	m := reliable("k", toURL)
	db.mustSave(t, m)
	relayed, err := db.RelayMessages(t.Context(), 10, always(takes).publish)
	require.NoError(t, err)
	require.Zero(t, relayed.Rows, "it is not the relay's")

	first, err := db.ClaimPosts(t.Context(), wide, nil, time.Minute)
	require.NoError(t, err)
	require.Len(t, first, 1)
	require.Equal(t, "https://shop.example/in", first[0].Destination)
	none, err := db.ClaimPosts(t.Context(), wide, nil, time.Minute)
	require.NoError(t, err)
	require.Empty(t, none)

	_, err = db.owner(t).Exec(t.Context(), `update message_live set next_at = now()`) // the lease ended
	require.NoError(t, err)
	second, err := db.ClaimPosts(t.Context(), wide, nil, time.Minute)
	require.NoError(t, err)
	require.Len(t, second, 1)
	refused := msg.Result{Outcome: msg.Refused, Reason: "answered 500"}
	_, err = db.SettlePosts(t.Context(), []Posted{{first[0], refused}})
	require.NoError(t, err)
	require.EqualValues(t, 2, db.mustMessage(t, m.ID).Remaining, "a late failure uses no send up")
	again, err := db.SettlePosts(t.Context(), []Posted{{second[0], refused}})
	require.NoError(t, err)
	require.Len(t, again, 1)
	d := db.mustMessage(t, m.ID)
	require.EqualValues(t, 1, d.Remaining)
	require.Equal(t, "answered 500", d.LastError)

	_, err = db.SettlePosts(t.Context(), []Posted{{first[0], msg.Result{Outcome: msg.Taken}}})
	require.NoError(t, err)
	require.Equal(t, "received", db.mustMessage(t, m.ID).State(), "a late success counts: the receiver has it")
	require.Zero(t, db.count(t, `select count(*) from message_live`))
}

func TestAReceiverOfAURLThatStaysDownLeavesTheMessageStuckAndARedriveSendsIt(t *testing.T) {
	t.Parallel()
	db := open(t)
	m := reliable("k", toURL, func(m *NewMessage) { m.MaxSends = 1 })
	db.mustSave(t, m)
	require.Empty(t, db.postAll(t, msg.Result{Outcome: msg.Refused, Reason: "connection refused"}))
	d := db.mustMessage(t, m.ID)
	require.True(t, d.Stuck())
	require.Equal(t, "sending", d.State())
	_, err := db.RedriveMessage(t.Context(), m.ID, Operator{Name: "ops"})
	require.NoError(t, err)
	db.postAll(t, msg.Result{Outcome: msg.Taken})
	require.Equal(t, "received", db.mustMessage(t, m.ID).State())
}

func TestAbandonedWhileItWasPostedAMessageIsReceivedAllTheSame(t *testing.T) {
	t.Parallel()
	db := open(t)
	m := reliable("k", toURL)
	db.mustSave(t, m)
	posts, err := db.ClaimPosts(t.Context(), wide, nil, time.Minute)
	require.NoError(t, err)
	_, err = db.AbandonMessage(t.Context(), m.ID, Operator{Name: "ops", Reason: "x"})
	require.NoError(t, err)
	_, err = db.SettlePosts(t.Context(), []Posted{{posts[0], msg.Result{Outcome: msg.Taken}}})
	require.NoError(t, err)
	require.Equal(t, "received", db.mustMessage(t, m.ID).State())
}

func TestNoHostKeepsMessagesToAnotherOneWaiting(t *testing.T) {
	t.Parallel()
	db := open(t)
	for n := range 40 {
		db.mustSave(t, reliable(fmt.Sprint("busy", n), toURL))
	}
	other := reliable("calm", toURL, func(m *NewMessage) { m.To.Name = "https://calm.example:8443/in?x=1" })
	db.mustSave(t, other)
	lanes := func(posts []Post) map[string]int {
		n := map[string]int{}
		for _, p := range posts {
			n[p.DestinationKey()]++
		}
		return n
	}
	first, err := db.ClaimPosts(t.Context(), wide, nil, time.Minute)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"0 shop.example": 16, "0 calm.example:8443": 1}, lanes(first))
	shop := slices.DeleteFunc(slices.Clone(first), func(p Post) bool { return p.DestinationKey() != "0 shop.example" })
	more, err := db.ClaimPosts(t.Context(), wide, shop[:15], time.Minute)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"0 shop.example": 1}, lanes(more), "those in hand count")

	_, err = db.SettlePosts(t.Context(), []Posted{{first[0], msg.Result{Outcome: msg.Taken}}})
	require.NoError(t, err)
	next, due, err := db.NextDelivery(t.Context())
	require.NoError(t, err)
	require.True(t, due)
	require.WithinDuration(t, time.Now(), next, time.Minute, "what nobody has in hand is due at once")
	db.exec(t, `update message_live set next_at = now() + interval '1 hour'`)
	next, due, err = db.NextDelivery(t.Context())
	require.NoError(t, err)
	require.False(t, due)
	require.WithinDuration(t, time.Now().Add(time.Hour), next, time.Minute)
}

func TestARevivedMessageComesBackToTheLaneThatItWasSubmittedTo(t *testing.T) {
	t.Parallel()
	conn := owner(t, sandbox.NewDatabase(t))
	for _, url := range []string{
		"https://a.example", "https://a.example/", "https://a.example:8443/b?c=d#e", "http://user@a.example/b", "https://[::1]:80/x", "https://a.example?u=http://b.example", "https://a.example#x",
	} {
		var lane string
		require.NoError(t, conn.QueryRow(t.Context(), "select "+messageDestinationKey+" from (values (1, 7, $1::text)) m (kind, caller_id, destination)", url).Scan(&lane))
		require.Equal(t, destinationKey(7, url), lane)
	}
}
