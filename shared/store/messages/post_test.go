package messages_test

import (
	"fmt"
	"slices"
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

// wideLimits allow all posts of these tests, except that TestOneHostDoesNotDelayAnother exceeds the limit of one host.
var wideLimits = messages.InFlightLimits{All: 100, Account: 100, Destination: 16}

func claimPosts(t *testing.T, db *storetest.DB, inFlight ...messages.Post) []messages.Post {
	t.Helper()
	posts, err := db.Messages.ClaimPosts(t.Context(), wideLimits, inFlight, time.Minute)
	require.NoError(t, err)
	return posts
}

// settlePosts settles each post with the result r.
func settlePosts(t *testing.T, db *storetest.DB, r msg.Result, posts ...messages.Post) messages.SettledPosts {
	t.Helper()
	settled, err := db.Messages.SettlePosts(t.Context(), store.Column(posts, func(p messages.Post) messages.Posted {
		return messages.Posted{Post: p, Result: r}
	}))
	require.NoError(t, err)
	return settled
}

func toURL(m *messages.Submission) {
	m.To, m.Confirm = msg.Address{Kind: msg.URL, Name: "https://shop.example/in"}, false
}

func TestPostIsLeasedToOneProcess(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	m := storetest.Message("k", toURL)
	db.MustSave(t, m)
	require.Zero(t, db.RelayDue(t, storetest.Always(storetest.Accepted)).Rows, "the relay does not send messages to URLs")

	first := claimPosts(t, db)
	require.Len(t, first, 1)
	require.Equal(t, "https://shop.example/in", first[0].Destination)
	require.Empty(t, claimPosts(t, db))

	db.Exec(t, `update message_live set next_at = now()`) // the lease ended
	second := claimPosts(t, db)
	require.Len(t, second, 1)
	refused := msg.Result{Outcome: msg.Refused, Reason: "returned 500"}
	settlePosts(t, db, refused, first[0])
	require.EqualValues(t, 2, db.MustMessage(t, m.ID).Remaining, "a failure after the lease does not count as a send")
	require.Len(t, settlePosts(t, db, refused, second[0]).NextTries, 1)
	d := db.MustMessage(t, m.ID)
	require.EqualValues(t, 1, d.Remaining)
	require.Equal(t, "returned 500", d.LastError)

	settlePosts(t, db, storetest.Accepted, first[0])
	require.Equal(t, "received", db.MustMessage(t, m.ID).State(), "a late success counts: the receiver has the message")
	require.Zero(t, db.Count(t, `select count(*) from message_live`))
}

func TestRedriveSendsMessageStuckOnDeadURL(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	m := storetest.Message("k", toURL, func(m *messages.Submission) { m.MaxSends = 1 })
	db.MustSave(t, m)
	require.Empty(t, settlePosts(t, db, msg.Result{Outcome: msg.Refused, Reason: "connection refused"}, claimPosts(t, db)...).NextTries)
	d := db.MustMessage(t, m.ID)
	require.True(t, d.Stuck())
	require.Equal(t, "sending", d.State())
	_, err := db.Messages.Redrive(t.Context(), m.ID, store.Operator{Name: "ops"})
	require.NoError(t, err)
	settlePosts(t, db, storetest.Accepted, claimPosts(t, db)...)
	require.Equal(t, "received", db.MustMessage(t, m.ID).State())
}

// The results of many callers are stored together, so they do not wait for a message that another
// transaction has locked. The result of the locked message is stored later.
func TestLockedMessageDelaysOnlyItsOwnResult(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for name, held := range map[string]struct {
		before func(id task.ID)
		sql    string
	}{
		"live":           {func(task.ID) {}, `select from message_live where id = $1 for update`},
		"being redriven": {func(task.ID) {}, `update message_live set epoch = epoch where id = $1`},
		"final": {func(id task.ID) {
			_, err := db.Messages.Abandon(t.Context(), id, store.Operator{Name: "ops", Reason: "x"})
			require.NoError(t, err)
		}, `select from message_done where id = $1 for update`},
	} {
		busy, free := storetest.Message(name+" busy", toURL), storetest.Message(name+" free", toURL)
		deleted := storetest.Message(name+" deleted", toURL)
		db.MustSave(t, busy, free, deleted)
		posts := claimPosts(t, db)
		require.Len(t, posts, 3, name)
		held.before(busy.ID)
		db.Exec(t, `delete from message_live where id = $1`, deleted.ID)
		db.Exec(t, `delete from messages where id = $1`, deleted.ID)
		release := db.HoldLock(t, held.sql, busy.ID)
		settled := settlePosts(t, db, storetest.Accepted, posts...)
		require.Equal(t, "received", db.MustMessage(t, free.ID).State(), name)
		require.Len(t, settled.Unsettled, 1, name)
		locked := posts[settled.Unsettled[0]]
		require.Equal(t, busy.ID, locked.ID, name)
		release()
		require.Empty(t, settlePosts(t, db, storetest.Accepted, locked).Unsettled, name)
		require.Equal(t, "received", db.MustMessage(t, busy.ID).State(), name)
	}
}

func TestOneHostDoesNotDelayAnother(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for n := range 40 {
		db.MustSave(t, storetest.Message(fmt.Sprint("busy", n), toURL))
	}
	other := storetest.Message("calm", toURL, func(m *messages.Submission) { m.To.Name = "https://calm.example:8443/in?x=1" })
	db.MustSave(t, other)
	byKey := func(posts []messages.Post) map[string]int {
		n := map[string]int{}
		for _, p := range posts {
			n[p.DestinationKey()]++
		}
		return n
	}
	first := claimPosts(t, db)
	require.Equal(t, map[string]int{"0 shop.example": 16, "0 calm.example:8443": 1}, byKey(first))
	shop := slices.DeleteFunc(slices.Clone(first), func(p messages.Post) bool { return p.DestinationKey() != "0 shop.example" })
	require.Equal(t, map[string]int{"0 shop.example": 1}, byKey(claimPosts(t, db, shop[:15]...)), "the posts in flight count")

	settlePosts(t, db, storetest.Accepted, first[0])
	next, due, err := db.Webhooks.NextDelivery(t.Context())
	require.NoError(t, err)
	require.True(t, due)
	require.WithinDuration(t, time.Now(), next, time.Minute, "a message without a lease is due at once")
	db.Exec(t, `update message_live set next_at = now() + interval '1 hour'`)
	next, due, err = db.Webhooks.NextDelivery(t.Context())
	require.NoError(t, err)
	require.False(t, due)
	require.WithinDuration(t, time.Now().Add(time.Hour), next, time.Minute)
}

func TestDestinationKeyIsTheSameInSQLAndGo(t *testing.T) {
	t.Parallel()
	conn := storetest.ConnectAsOwner(t, sandbox.NewDatabase(t))
	for _, url := range []string{
		"https://a.example", "https://a.example/", "https://a.example:8443/b?c=d#e", "http://user@a.example/b", "https://[::1]:80/x", "https://a.example?u=http://b.example", "https://a.example#x",
	} {
		var key string
		require.NoError(t, conn.QueryRow(t.Context(), "select "+messages.MessageDestinationKey+" from (values (1, 7, $1::text)) m (kind, caller_id, destination)", url).Scan(&key))
		require.Equal(t, messages.DestinationKey(7, url), key)
	}
}

// A message that is redriven during its post is posted a second time concurrently. Both results may be
// settled in one call, together with results of other messages.
func TestTwoPostsOfOneMessageAreSettledInOneCall(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	redriven, other := storetest.Message("redriven", toURL), storetest.Message("other", toURL)
	db.MustSave(t, redriven, other)
	posts := claimPosts(t, db)
	_, err := db.Messages.Redrive(t.Context(), redriven.ID, store.Operator{Name: "ops"})
	require.NoError(t, err)
	again := claimPosts(t, db, posts...)
	require.Len(t, again, 1)
	posts = append(posts, again...)
	require.Len(t, posts, 3)
	settlePosts(t, db, storetest.Accepted, posts...)
	require.Equal(t, 2, db.Count(t, `select count(*) from message_done`))
	require.Zero(t, db.Count(t, `select count(*) from message_live`))
}
