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

// Conversation is one page of the messages that two users, its members, sent to
// each other, and how far each of them has read.
type Conversation struct {
	Messages []Detail      // newest first: by creation, then id; with their receipts
	More     bool          // there are older ones
	Read     [2]ReadCursor // of the members, in the order of the arguments
}

// ReadCursor is how far one member has read a conversation.
type ReadCursor struct {
	UpTo   task.ID   // the newest message that the member has read; zero before the first
	ReadAt time.Time // when UpTo was set; zero before the first
	Unread int       // newer messages of the other member; MaxUnread = that many or more
}

// ofConversation are the messages m between $1 and $2.
const ofConversation = `m.kind = 2 and (m.sender = $1 and m.destination = $2 or m.sender = $2 and m.destination = $1)`

// olderThanMessage selects one page of one direction, newest first: the messages older
// than the message $4, which was created at $3; all if these are null.
const olderThanMessage = ` and (created_at, id) < (coalesce($3::timestamptz, 'infinity'), coalesce($4::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
    order by created_at desc, id desc limit $5`

// conversationSQL merges both directions, each of the main tables and of the
// archive. Messages beyond the size of a page (store.CollectPage) are not loaded:
// the database knows the length of a text without loading it.
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

// unreadOf bounds the messages m of $2 to $1 that are newer than the cursor c.
const unreadOf = `m.kind = 2 and m.sender = $2 and m.destination = $1` + newerThanCursor

const newerThanCursor = `
        and (m.created_at, m.id) > (coalesce(c.created_at, '-infinity'), coalesce(c.id, '00000000-0000-0000-0000-000000000000'))`

// readCursorSQL returns the cursor of $1 in its conversation with $2, and the number of
// newer messages of $2.
const readCursorSQL = `
select c.id, c.read_at, (select count(*) from (
    (select from messages m where ` + unreadOf + ` limit $3)
    union all
    (select from archived_messages m where ` + unreadOf + ` limit $3)
    limit $3) unread)
from (select) one left join message_cursors c on c.reader = $1 and c.peer = $2`

// Peer is a user who wrote to another, the reader, and the reader's cursor in their conversation.
type Peer struct {
	Name   string
	Last   task.ID   // the newest message to the reader
	LastAt time.Time // when it was saved
	Read   ReadCursor
}

// lastToUser finds the newest message of the sender p to $1 in a table.
const lastToUser = ` where kind = 2 and destination = $1 and sender = p.sender order by created_at desc, id desc limit 1`

// peersSQL goes from sender to sender of the messages to $1, so it reads a few
// entries of an index for each of them, however many messages they sent. Unread
// messages are counted only for the peers of the page.
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
), page as materialized (
    select p.sender, l.created_at, l.id
    from (select sender from live union select sender from archived) p
    cross join lateral (
        (select created_at, id from messages` + lastToUser + `)
        union all
        (select created_at, id from archived_messages` + lastToUser + `)
        order by created_at desc, id desc limit 1
    ) l
    where p.sender <> $1
        and (l.created_at, l.id) < (coalesce($2::timestamptz, 'infinity'), coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
    order by l.created_at desc, l.id desc limit $4
)
select page.sender, page.id, page.created_at, read.*
from page cross join lateral (` + readCursorOfPeer + `) read
order by page.created_at desc, page.id desc`

// readCursorOfPeer is readCursorSQL for each row of page.
const readCursorOfPeer = `
    select c.id, c.read_at, (select count(*) from (
        (select from messages m where ` + unreadOfPeer + ` limit $5)
        union all
        (select from archived_messages m where ` + unreadOfPeer + ` limit $5)
        limit $5) unread)
    from (select) one left join message_cursors c on c.reader = $1 and c.peer = page.sender`

const unreadOfPeer = `m.kind = 2 and m.sender = page.sender and m.destination = $1` + newerThanCursor

const peerTimeSQL = `
select created_at from messages where id = $2 and kind = 2 and destination = $1
union all
select created_at from archived_messages where id = $2 and kind = 2 and destination = $1`

// Peers reads a page of the other users who wrote to a user, ordered by their newest
// messages, newest first. after is the Last of the last peer of the previous page, zero
// for the first page. The error is task.CodeNotFound if it is not a message to the user.
func (st *Store) Peers(ctx context.Context, user string, after task.ID, limit int) (peers []Peer, more bool, err error) {
	var before *time.Time
	if !after.IsZero() {
		found, err := store.QueryOne[struct{ At time.Time }](ctx, st.db.Hot, "message", peerTimeSQL, user, after)
		if err != nil {
			return nil, false, store.Wrap("peers", err)
		}
		before = &found.At
	}
	peers, more, err = store.QueryPageBy(ctx, st.db.Hot, limit, scanPeer, peersSQL, user, before, store.OrNull(after), limit+1, MaxUnread)
	return peers, more, store.Wrap("peers", err)
}

func scanPeer(row pgx.CollectableRow) (p Peer, err error) {
	var upTo *task.ID
	var readAt *time.Time
	if err := row.Scan(&p.Name, &p.Last, &p.LastAt, &upTo, &readAt, &p.Read.Unread); err != nil {
		return p, err
	}
	p.Read.set(upTo, readAt)
	return p, nil
}

// Conversation reads a page of the conversation of two different users. after is the
// last id of the previous page, zero for the first page. The error is task.CodeNotFound
// if it is not of this conversation.
func (st *Store) Conversation(ctx context.Context, a, b string, after task.ID, limit int) (page Conversation, err error) {
	var before *time.Time
	if !after.IsZero() {
		found, err := store.QueryOne[struct{ At time.Time }](ctx, st.db.Hot, "message", messageTimeSQL, a, b, after)
		if err != nil {
			return page, store.Wrap("conversation", err)
		}
		before = &found.At
	}
	var batch pgx.Batch
	batch.Queue(conversationSQL, a, b, before, store.OrNull(after), limit+1).Query(func(rows pgx.Rows) error {
		page.Messages, page.More, err = store.CollectPage(ctx, rows, limit, scanMessage)
		return err
	})
	for i, members := range [][2]string{{a, b}, {b, a}} {
		batch.Queue(readCursorSQL, members[0], members[1], MaxUnread).QueryRow(page.Read[i].scan)
	}
	err = st.db.Hot.SendBatch(ctx, &batch).Close()
	return page, store.Wrap("conversation", err)
}

func (c *ReadCursor) scan(row pgx.Row) error {
	var id *task.ID
	var at *time.Time
	if err := row.Scan(&id, &at, &c.Unread); err != nil {
		return err
	}
	c.set(id, at)
	return nil
}

// set stores the columns of a cursor, which are null if there is none yet.
func (c *ReadCursor) set(upTo *task.ID, at *time.Time) {
	if upTo != nil {
		c.UpTo = *upTo
	}
	c.ReadAt = store.OrZero(at)
}

// markReadSQL returns whether message $3 belongs to the conversation of $1 and $2, and if so
// moves the cursor of $1 up to it.
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

// MarkRead records that reader has read its conversation with peer up to a message
// of either of them. The cursor never moves back: an older message changes nothing.
// The error is task.CodeNotFound if the message is not of this conversation, or is not
// saved yet.
func (st *Store) MarkRead(ctx context.Context, reader, peer string, upTo task.ID) error {
	var found bool
	err := st.db.Hot.QueryRow(ctx, markReadSQL, reader, peer, upTo).Scan(&found)
	if err == nil && !found {
		err = errNoMessage()
	}
	return store.Wrap("mark read", err)
}
