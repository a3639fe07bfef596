package messages

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// MaxUnread is the number of unread messages at which counting stops.
const MaxUnread = 100

// Conversation is one page of the messages that two users (its members) sent to each other, and how far
// each member has read.
type Conversation struct {
	Messages []Detail      // newest first: by creation, then id; with their receipts
	More     bool          // there are older messages
	Read     [2]ReadCursor // of the members, in the order of the arguments
}

// ReadCursor is how far one member has read a conversation.
type ReadCursor struct {
	UpTo   task.ID   // the newest message that the member has read; zero = none
	ReadAt time.Time // when UpTo was set; zero = never
	Unread int       // messages of the other member newer than UpTo; MaxUnread = that many or more
}

// ofConversation selects the messages m between the users $1 and $2.
const ofConversation = `m.kind = 2 and (m.sender = $1 and m.destination = $2 or m.sender = $2 and m.destination = $1)`

// olderThanMessage selects the $5 newest messages that are older than the message $4, created at $3. If $3 and
// $4 are null, it selects the $5 newest of all.
const olderThanMessage = ` and (created_at, id) < (coalesce($3::timestamptz, 'infinity'), coalesce($4::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
    order by created_at desc, id desc limit $5`

// conversationSQL merges the messages of both directions, from the main tables and from the archive. It adds up
// the lengths of the data, and loads only the messages that fit in a page (1 MiB, see store.CollectPage) and one more.
// The database knows the length of a text without loading the text.
const conversationSQL = `
select s.*
from (
    select all_parts.*, sum(size) over (order by created_at desc, id desc rows unbounded preceding) - size as before
    from (
        (select created_at, id, false as archived from messages where kind = 2 and sender = $1 and destination = $2` + olderThanMessage + `)
        union all
        (select created_at, id, false from messages where kind = 2 and sender = $2 and destination = $1` + olderThanMessage + `)
        union all
        (select created_at, id, true from archived_messages where kind = 2 and sender = $1 and destination = $2` + olderThanMessage + `)
        union all
        (select created_at, id, true from archived_messages where kind = 2 and sender = $2 and destination = $1` + olderThanMessage + `)
        order by created_at desc, id desc limit $5
    ) all_parts
    cross join lateral (
        select octet_length(data) as size from messages where id = all_parts.id and not archived
        union all
        select octet_length(data) from archived_messages where id = all_parts.id and archived
        offset 0
    ) sizes
) p
cross join lateral (
    select ` + messageBody + `, ` + messageLive + `, ` + receiptsOfBody + `, now()
    from messages m join message_live l on l.id = m.id where m.id = p.id and not p.archived
    union all
    select ` + messageBody + `, ` + messageDone + `, ` + receiptsOfBody + `, now()
    from messages m join message_done d on d.id = m.id where m.id = p.id and not p.archived
    union all
    select ` + messageBody + `, ` + messageArchived + `, m.receipts, now()` + fromArchivedMessages + `where m.id = p.id and p.archived
    offset 0
) s
where p.before <= (1 << 20)
order by p.created_at desc, p.id desc`

const messageTimeSQL = `
select m.created_at from messages m where m.id = $3 and ` + ofConversation + `
union all
select m.created_at from archived_messages m where m.id = $3 and ` + ofConversation

// unreadOfPeer selects the messages m of a peer to $1 that are newer than the cursor c.
const unreadOfPeer = `m.kind = 2 and m.sender = peer.name and m.destination = $1
        and (m.created_at, m.id) > (coalesce(c.created_at, '-infinity'), coalesce(c.id, '00000000-0000-0000-0000-000000000000'))`

// readCursor returns the cursor of $1 in its conversation with a peer, and how many messages of the peer
// are newer, up to $2.
const readCursor = `
    select c.id, c.read_at, (select count(*) from (
        (select from messages m where ` + unreadOfPeer + ` limit $2)
        union all
        (select from archived_messages m where ` + unreadOfPeer + ` limit $2)
        limit $2) unread)
    from (select) one_row left join message_cursors c on c.reader = $1 and c.peer = peer.name`

const readCursorSQL = `select read.* from (select $3::text as name) peer cross join lateral (` + readCursor + `) read`

// Peer is a user who wrote to another user, the reader.
type Peer struct {
	Name   string
	Last   task.ID   // the newest message to the reader
	LastAt time.Time // when Last was saved
	Read   ReadCursor
}

// lastToUser selects the newest message of a sender to $1.
const lastToUser = ` where kind = 2 and destination = $1 and sender = senders.name order by created_at desc, id desc limit 1`

// peersSQL steps from sender to sender of the messages to $1. It reads a few index entries for each sender,
// however many messages the sender has sent, and counts unread messages only for the peers of the page.
const peersSQL = `
with recursive live as (
    (select sender from messages where kind = 2 and destination = $1 order by sender limit 1)
    union all
    select (select m.sender from messages m where m.kind = 2 and m.destination = $1 and m.sender > live.sender order by m.sender limit 1)
    from live where live.sender is not null
), archived as (
    (select sender from archived_messages where kind = 2 and destination = $1 order by sender limit 1)
    union all
    select (select m.sender from archived_messages m where m.kind = 2 and m.destination = $1 and m.sender > archived.sender order by m.sender limit 1)
    from archived where archived.sender is not null
), peer as materialized (
    select senders.name, last.created_at, last.id
    from (select sender from live union select sender from archived) senders (name)
    cross join lateral (
        (select created_at, id from messages` + lastToUser + `)
        union all
        (select created_at, id from archived_messages` + lastToUser + `)
        order by created_at desc, id desc limit 1
    ) last
    where senders.name <> $1
        and (last.created_at, last.id) < (coalesce($3::timestamptz, 'infinity'), coalesce($4::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
    order by last.created_at desc, last.id desc limit $5
)
select peer.name, peer.id, peer.created_at, read.*
from peer cross join lateral (` + readCursor + `) read
order by peer.created_at desc, peer.id desc`

const peerTimeSQL = `
select created_at from messages where id = $2 and kind = 2 and destination = $1
union all
select created_at from archived_messages where id = $2 and kind = 2 and destination = $1`

// createdAt returns the time that sql finds for a message, nil for the zero id. The last parameter of sql
// is the id. The error is task.CodeNotFound if there is no such message.
func (st *Store) createdAt(ctx context.Context, id task.ID, sql string, users ...any) (*time.Time, error) {
	if id.IsZero() {
		return nil, nil
	}
	found, err := store.QueryOne[struct{ At time.Time }](ctx, st.db.Hot, "message", sql, append(users, id)...)
	return &found.At, err
}

// Peers reads a page of the other users who wrote to a user, those with the newest messages first. after
// is the Last of the last peer of the previous page, zero for the first page. The error is
// task.CodeNotFound if after is not a message to the user.
func (st *Store) Peers(ctx context.Context, user string, after task.ID, limit int) (peers []Peer, more bool, err error) {
	afterTime, err := st.createdAt(ctx, after, peerTimeSQL, user)
	if err == nil {
		peers, more, err = store.QueryPageBy(ctx, st.db.Hot, limit, scanPeer, peersSQL, user, MaxUnread, afterTime, store.OrNull(after), limit+1)
	}
	return peers, more, store.Wrap("peers", err)
}

func scanPeer(row pgx.CollectableRow) (p Peer, err error) {
	err = p.Read.scan(row, &p.Name, &p.Last, &p.LastAt)
	return p, err
}

// scan reads the first columns of a row into first, and the columns of readCursor after them into c.
func (c *ReadCursor) scan(row pgx.Row, first ...any) error {
	var upTo *task.ID // null if the reader has no cursor yet
	var readAt *time.Time
	err := row.Scan(append(first, &upTo, &readAt, &c.Unread)...)
	c.UpTo, c.ReadAt = store.OrZero(upTo), store.OrZero(readAt)
	return err
}

// Conversation reads a page of the conversation of two different users. after is the last id of the
// previous page, zero for the first page. The error is task.CodeNotFound if after is not a message of this
// conversation.
func (st *Store) Conversation(ctx context.Context, a, b string, after task.ID, limit int) (page Conversation, err error) {
	afterTime, err := st.createdAt(ctx, after, messageTimeSQL, a, b)
	if err != nil {
		return page, store.Wrap("conversation", err)
	}
	var batch pgx.Batch
	batch.Queue(conversationSQL, a, b, afterTime, store.OrNull(after), limit+1).Query(func(rows pgx.Rows) error {
		page.Messages, page.More, err = store.CollectPage(ctx, rows, limit, scanMessage)
		return err
	})
	for i, members := range [][2]string{{a, b}, {b, a}} {
		batch.Queue(readCursorSQL, members[0], MaxUnread, members[1]).QueryRow(func(row pgx.Row) error { return page.Read[i].scan(row) })
	}
	err = st.db.Hot.SendBatch(ctx, &batch).Close()
	return page, store.Wrap("conversation", err)
}

// markReadSQL returns whether the message $3 belongs to the conversation of $1 and $2. If so, it moves the
// cursor of $1 forward to $3.
const markReadSQL = `
with m as materialized (
    select m.created_at, m.id from messages m where m.id = $3 and ` + ofConversation + `
    union all
    select m.created_at, m.id from archived_messages m where m.id = $3 and ` + ofConversation + `
), moved as (
    insert into message_cursors as c (reader, peer, created_at, id) select $1, $2, created_at, id from m
    on conflict (reader, peer) do update set created_at = excluded.created_at, id = excluded.id, read_at = now()
    where (c.created_at, c.id) < (excluded.created_at, excluded.id)
)
select exists (select from m)`

// MarkRead records that reader has read the conversation with peer up to a message of either user. The cursor
// never moves to an older message. The error is task.CodeNotFound if the message is not of this conversation or
// not saved yet.
func (st *Store) MarkRead(ctx context.Context, reader, peer string, upTo task.ID) error {
	var found bool
	err := st.db.Hot.QueryRow(ctx, markReadSQL, reader, peer, upTo).Scan(&found)
	if err == nil && !found {
		err = errNoMessage()
	}
	return store.Wrap("mark read", err)
}
