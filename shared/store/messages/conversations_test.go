package messages_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

// keys returns the client_msg_ids of a page.
func keys(c messages.Conversation) []string {
	return store.Column(c.Messages, func(m messages.Detail) string { return m.ClientMsgID })
}

func TestConversationIsPagedNewestFirst(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var want []string
	for i := range 5 {
		from, to := "ann", "bob"
		if i%2 == 1 {
			from, to = to, from
		}
		key := fmt.Sprint("k", i)
		db.Chat(t, from, to, key)
		want = append([]string{key}, want...)
	}
	db.Chat(t, "ann", "cid", "other")
	db.Chat(t, "ann", "ann", "self")
	db.MustSave(t, storetest.Message("subject", func(m *messages.Submission) { m.From, m.To.Name = "ann", "bob" }))
	db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted)) // the message to the subject waits for its confirmation, the others are final
	db.Chat(t, "bob", "ann", "fresh")
	want = append([]string{"fresh"}, want...)

	for _, members := range [][2]string{{"ann", "bob"}, {"bob", "ann"}} {
		paged, pages := storetest.Pages(t, func(after task.ID) ([]messages.Detail, bool, error) {
			page, err := db.Messages.Conversation(t.Context(), members[0], members[1], after, 2)
			return page.Messages, page.More, err
		}, func(m messages.Detail) task.ID { return m.ID })
		require.Equal(t, want, store.Column(paged, func(m messages.Detail) string { return m.ClientMsgID }))
		require.Equal(t, 3, pages)
	}
	page := db.MustConverse(t, "ann", "bob", task.ID{}, 6)
	require.False(t, page.More, "the page has all messages, exactly as many as the limit")
	require.Equal(t, []string{"sending", "sent"}, store.Column(page.Messages[:2], func(m messages.Detail) string { return m.State() }))
	require.Equal(t, db.MustMessage(t, page.Messages[1].ID), page.Messages[1], "Conversation returns the same as ByID")
	require.Empty(t, db.MustConverse(t, "bob", "cid", task.ID{}, 2))
}

func TestMessagesOfTheSameTimeAreOrderedByID(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var ids []task.ID
	for i := range 4 {
		ids = append(ids, db.Chat(t, []string{"ann", "bob"}[i%2], []string{"bob", "ann"}[i%2], fmt.Sprint(i)))
	}
	db.Exec(t, `update messages set created_at = '2026-01-02T03:04:05.123456Z'`)
	slices.SortFunc(ids, func(x, y task.ID) int { return y.Compare(x) })
	var after task.ID
	for _, id := range ids {
		page := db.MustConverse(t, "ann", "bob", after, 1)
		require.Equal(t, id, page.Messages[0].ID)
		after = id
	}
	require.NoError(t, db.Messages.MarkRead(t.Context(), "ann", "bob", ids[1]))
	require.NoError(t, db.Messages.MarkRead(t.Context(), "ann", "bob", ids[2]))
	require.Equal(t, ids[1], db.MustConverse(t, "ann", "bob", task.ID{}, 1).Read[0].UpTo)
}

func TestMessageOfAnotherConversationIsNotFound(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Chat(t, "ann", "bob", "k")
	for name, id := range map[string]task.ID{"another conversation": db.Chat(t, "ann", "cid", "other"), "unknown": task.NewID()} {
		_, err := db.Messages.Conversation(t.Context(), "ann", "bob", id, 1)
		require.Equal(t, task.CodeNotFound, task.CodeOf(err), name)
		require.Equal(t, task.CodeNotFound, task.CodeOf(db.Messages.MarkRead(t.Context(), "ann", "bob", id)), name)
	}
	require.Zero(t, db.Count(t, `select count(*) from message_cursors`))
}

func TestEachMemberHasItsOwnCursor(t *testing.T) {
	t.Parallel()
	db, ctx := storetest.Open(t), t.Context()
	first, second := db.Chat(t, "ann", "bob", "1"), db.Chat(t, "ann", "bob", "2")
	reply := db.Chat(t, "bob", "ann", "3")
	last := db.Chat(t, "ann", "bob", "4")
	db.Chat(t, "ann", "cid", "5")
	db.Chat(t, "cid", "bob", "6")
	read := func() [2]messages.ReadCursor { return db.MustConverse(t, "ann", "bob", task.ID{}, 1).Read }
	require.Equal(t, [2]messages.ReadCursor{{Unread: 1}, {Unread: 3}}, read(), "one's own messages are not unread")

	require.NoError(t, db.Messages.MarkRead(ctx, "bob", "ann", second))
	got := read()
	require.Equal(t, messages.ReadCursor{Unread: 1}, got[0])
	require.Equal(t, second, got[1].UpTo)
	require.Equal(t, 1, got[1].Unread)
	require.WithinDuration(t, time.Now(), got[1].ReadAt, time.Minute)
	require.Equal(t, [2]messages.ReadCursor{got[1], got[0]}, db.MustConverse(t, "bob", "ann", first, 1).Read, "the cursors are in the order of the arguments, and on every page")

	for _, id := range []task.ID{first, second} {
		require.NoError(t, db.Messages.MarkRead(ctx, "bob", "ann", id))
		require.Equal(t, got, read(), "an older message, or the same again, changes nothing")
	}
	require.NoError(t, db.Messages.MarkRead(ctx, "bob", "ann", reply))
	require.Equal(t, reply, read()[1].UpTo, "the cursor can be at a message of one's own")
	require.Equal(t, 1, read()[1].Unread)
	require.NoError(t, db.Messages.MarkRead(ctx, "bob", "ann", last))
	require.NoError(t, db.Messages.MarkRead(ctx, "ann", "bob", reply))
	got = read()
	require.Equal(t, [2]int{}, [2]int{got[0].Unread, got[1].Unread})
	require.Equal(t, [2]task.ID{reply, last}, [2]task.ID{got[0].UpTo, got[1].UpTo})
}

func TestConcurrentMarkReadEndsAtTheNewest(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var ids []task.ID
	for i := range 8 {
		ids = append(ids, db.Chat(t, "ann", "bob", fmt.Sprint(i)))
	}
	errs := make([]error, 4*len(ids))
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = db.Messages.MarkRead(t.Context(), "bob", "ann", ids[i%len(ids)]) })
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, ids[len(ids)-1], db.MustConverse(t, "bob", "ann", task.ID{}, 1).Read[0].UpTo)
}

func TestUnreadCountStopsAtMaxUnread(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	rows := make([]*messages.Submission, messages.MaxUnread+1)
	for i := range rows {
		rows[i] = storetest.Message(fmt.Sprint(i), func(m *messages.Submission) {
			m.From, m.To, m.Confirm = "ann", msg.Address{Kind: msg.User, Name: "bob"}, false
		})
	}
	db.MustSave(t, rows...)
	page := db.MustConverse(t, "ann", "bob", task.ID{}, messages.MaxUnread+1)
	require.Equal(t, messages.MaxUnread, page.Read[1].Unread)
	require.NoError(t, db.Messages.MarkRead(t.Context(), "bob", "ann", page.Messages[messages.MaxUnread-1].ID))
	require.Equal(t, messages.MaxUnread-1, db.MustConverse(t, "ann", "bob", task.ID{}, 1).Read[1].Unread)
}

// allPeers reads all pages and returns the name and the number of unread messages of each peer.
func allPeers(t *testing.T, db *storetest.DB, user string, limit int) []string {
	t.Helper()
	all, _ := storetest.Pages(t, func(after task.ID) ([]messages.Peer, bool, error) {
		page, more, err := db.Messages.Peers(t.Context(), user, after, limit)
		require.LessOrEqual(t, len(page), limit)
		return page, more, err
	}, func(p messages.Peer) task.ID { return p.Last })
	return store.Column(all, func(p messages.Peer) string { return fmt.Sprint(p.Name, " ", p.Read.Unread) })
}

func TestPeersAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Chat(t, "bob", "ann", "1")
	second := db.Chat(t, "cid", "ann", "2")
	db.Chat(t, "ann", "dan", "3")
	db.Chat(t, "ann", "ann", "self")
	last := db.Chat(t, "bob", "ann", "4")
	db.MustSave(t, storetest.Message("subject", func(m *messages.Submission) { m.From, m.To.Name = "eve", "ann" }))
	for _, limit := range []int{1, 2, 3} {
		require.Equal(t, []string{"bob 2", "cid 1"}, allPeers(t, db, "ann", limit))
	}
	require.NoError(t, db.Messages.MarkRead(t.Context(), "ann", "bob", last))
	require.Equal(t, []string{"bob 0", "cid 1"}, allPeers(t, db, "ann", 2))
	require.Empty(t, allPeers(t, db, "bob", 2), "nobody wrote to bob")
	require.Equal(t, []string{"ann 1"}, allPeers(t, db, "dan", 2))
	_, _, err := db.Messages.Peers(t.Context(), "bob", second, 1)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err), "the message is not addressed to bob")

	db.Chat(t, "fay", "ann", "archived")
	db.Exec(t, `
with gone as (delete from messages where sender = 'fay' returning *), live as (delete from message_live using gone where message_live.id = gone.id)
insert into archived_messages (id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends,
	expected_receipts, created_at, status, abandoned, remaining_sends, send_no, epoch, finished_at, receipts)
select id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends,
	expected_receipts, created_at, 1, false, 4, 1, 1, now(), '[]' from gone`)
	require.Equal(t, []string{"fay 1", "bob 0", "cid 1"}, allPeers(t, db, "ann", 1), "a peer with only archived messages is listed")
}

// The user has very many messages of few peers.
func TestPeersDoesNotReadAllMessages(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	conn := db.Owner
	_, err := conn.Exec(t.Context(), `
set session_replication_role = replica;
insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts, created_at)
	select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 0, 'peer ' || g % 3, g::text, 2, 'ann', 'b', '1', false, 5, 1, now() - g * interval '1 s'
	from generate_series(1, 20000) g;
set session_replication_role = default;
analyze messages`)
	require.NoError(t, err)
	require.Equal(t, []string{"peer 1 100", "peer 2 100", "peer 0 100"}, allPeers(t, db, "ann", 50))
	blocks := storetest.CountBlocks(t, conn, messages.PeersSQL, pgx.QueryExecModeExec, "ann", messages.MaxUnread, nil, nil, 51)
	require.Less(t, blocks, 200, "3 peers, 100 unread messages of each")
}

func TestConversationPlansUseIndexesWithStaleStatistics(t *testing.T) {
	t.Parallel()
	storetest.Plans{
		// One pair has most of the messages, and one of the two wrote nearly all of them.
		Fill: `
insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
	select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 0, case when g % 100 = 0 then 'bob' else 'ann' end, g::text, 2,
		case when g % 100 = 0 then 'ann' when g % 10 = 0 then 'cid' else 'bob' end, 'b', '1', false, 5, 1
	from generate_series(1, 50000) g;
insert into message_live (id, kind, remaining_sends) select id, 2, 5 from messages limit 10000;
insert into message_done (id, status, abandoned, remaining_sends, send_no, epoch) select id, 1, false, 4, 1, 1 from messages offset 10000;
insert into message_cursors (reader, peer, created_at, id) select g::text, 'ann', now(), gen_random_uuid() from generate_series(1, 50000) g`,
		Tables: []string{"messages", "message_live", "message_done", "message_receipts", "message_cursors"},
		Args: map[string]string{
			"conversationSQL": `'ann', 'bob', now(), ` + storetest.AnID + `, 51`,
			"messageTimeSQL":  `'ann', 'bob', ` + storetest.AnID,
			"readCursorSQL":   `'bob', 100, 'ann'`,
			"markReadSQL":     `'bob', 'ann', ` + storetest.AnID,
			"sentToUserSQL":   `'ann', 'bob', 5000`,
			"peersSQL":        `'ann', 100, now(), ` + storetest.AnID + `, 51`,
			"peerTimeSQL":     `'ann', ` + storetest.AnID,
		},
		Index: map[string]string{
			"conversationSQL": "Index Only Scan Backward using messages_between", "messageTimeSQL": "messages_pkey",
			"readCursorSQL": "messages_between", "markReadSQL": "messages_pkey", "sentToUserSQL": "messages_between",
			"peersSQL": "Index Only Scan Backward using messages_between", "peerTimeSQL": "messages_pkey",
		},
		NoSort: []string{"readCursorSQL"},
	}.Require(t)
}
