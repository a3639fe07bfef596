package messages

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
)

// anyMessageDueSQL returns whether a message to a stream that is not paused is due. If none is, the relay needs no
// transaction.
const anyMessageDueSQL = DueStreams + `
select exists (select from s` + store.JoinStreamPauses + `where s.next_at <= now() and ` + store.StreamIsOpen + `)`

// lockDueMessagesSQL locks due messages for the broker, the earliest of each pair of caller and stream, and reads
// their bodies. Each caller gets an equal part of the $1 rows, divided equally among its streams. For a stream
// with a row in stream_pauses (its pause has ended, or the broker was unavailable), the callers divide only $2 rows. The
// messages of the held pairs ($3, $4) are not locked. So
// however many messages and streams one caller has, the first messages of every other caller are in the same batch. If
// the parts of the pairs are less than one row, the pairs of the batch are chosen at random. The data of a batch is
// limited to about 2 MiB. The data of messages above this limit is not loaded; then room is 0, because there may be more
// messages. Rows that another transaction has locked are skipped.
const lockDueMessagesSQL = DueStreams + `, due as materialized (
    select s.caller_id, s.stream, p.failures, random() as chance
    from s` + store.JoinStreamPauses + `where s.next_at <= now() and ` + store.StreamIsOpen + `
    and not exists (select from unnest($3::text[], $4::bigint[]) as held (stream, caller_id) where held.stream = s.stream and held.caller_id = s.caller_id)
), shares as materialized (
    select caller_id, count(*) * count(*) over () as parts from due group by caller_id
), probed as materialized (
    select stream, count(*) as callers from due where failures is not null group by stream
), l as materialized (
    select picked.*, share.failures, case when picked.bytes_so_far > share.max_bytes then 0 else share.max_rows end as room
    from (
        select due.*, greatest(coalesce($2 / probed.callers, $1 / parts), 1) as max_rows, (2 << 20) / least(parts, $1) as max_bytes
        from due join shares using (caller_id) left join probed using (stream)
        where chance * parts < $1
    ) share cross join lateral (
        select locked.*, sum(bytes) over (rows unbounded preceding) as bytes_so_far
        from (
            select * from message_live m
            where m.remaining_sends > 0 and m.kind <> 1 and m.caller_id = share.caller_id and m.stream = share.stream and m.next_at <= now()
            order by m.next_at, m.id
            limit share.max_rows
            for update skip locked
        ) locked
        offset 0
    ) picked
    where picked.bytes_so_far - picked.bytes <= share.max_bytes
)
select ` + messageBody + `, ` + messageLive + `, ` + noReceipts + `, now(), l.stream, l.room, l.failures
from l` + bodyOrNull

// Due is a message to be published now.
type Due struct {
	Detail
	MsgID string // identifies this send; if its result is Unavailable or lost, the next send has the same MsgID

	stream string
}

// Relay sends about limit due messages to the broker, the earliest of each caller and stream, and settles
// them in one transaction. Messages of held callers wait. It calls publish while the rows are locked. publish must return one result per
// message, in order, within 3 s: until Relay has committed, a receiver that confirms gets 503 after 1.3 s (AwaitSend), and
// after 10 s the database releases the locks. Any number of relays may run at once: each message is sent by one relay at a time.
//
// An unavailable stream (msg.OneStream) is paused, and the messages that it did not accept are not changed. After each
// pause, a few of them are tried. The pauses grow until the stream accepts a message. Messages that were not sent because
// the broker is unavailable (Relayed.BrokerUnavailable) are not changed either: wait before the next call of Relay, which
// tries the same messages. So a single relay keeps the order of a sender's messages to one receiver, except for a message
// that the stream does not accept while it accepts others. Several relays at once do not keep this order: the second relay sends
// later messages while the first one still holds the locks of earlier messages.
//
// If publish fails, the process dies or the transaction does not commit, nothing is settled. The messages are sent again
// with the same MsgIDs, by which the broker recognises them.
func (st *Store) Relay(ctx context.Context, limit int, held Held, publish func(ctx context.Context, due []Due) ([]msg.Result, error)) (relayed store.Relayed, err error) {
	conn, err := st.db.Hot.Acquire(ctx)
	if err != nil {
		return relayed, store.Wrap("relay", err)
	}
	defer conn.Release()
	relayed, bodiless, err := relayOnce(ctx, conn.Conn(), limit, held, publish)
	err = store.RollbackOn(conn.Conn(), err)
	if err == nil && bodiless > 0 {
		var removed bool
		removed, err = removeBodiless(ctx, conn, removeBodilessDueSQL)
		relayed.More = relayed.More || removed
	}
	return relayed, store.Wrap("relay", err)
}

func relayOnce(ctx context.Context, conn *pgx.Conn, limit int, held Held, publish func(context.Context, []Due) ([]msg.Result, error)) (
	relayed store.Relayed, bodiless int, err error,
) {
	due, streams, now, bodiless, err := lockDueMessages(ctx, conn, limit, held)
	if err != nil || len(due) == 0 {
		return relayed, bodiless, err
	}
	results, err := publish(ctx, due)
	if err == nil && len(results) != len(due) {
		err = fmt.Errorf("%d results for %d messages", len(results), len(due))
	}
	if err != nil {
		return relayed, 0, fmt.Errorf("publish: %w", err)
	}
	changes, jitter, usage := make([]messageChange, len(due)), rand.Float64(), streamUsage{}
	for i, m := range due {
		r := results[i]
		if r.Outcome == msg.Unavailable {
			r.RetryAfter = msg.UnavailablePause(now.Sub(m.CreatedAt))
		}
		streams.AddResult(m.stream, r)
		if r.Outcome == msg.Accepted {
			usage.add(m.stream, m.CallerID, len(m.Data))
		}
		// All messages have the same jitter, and a microsecond between them, so that delayed messages keep their order.
		after := m.Settle(r, now.Add(time.Duration(i)*time.Microsecond), jitter)
		changes[i] = messageChange{m.ID, m.Message, after}
		if after.NextAt.After(now) {
			relayed.NextTries = append(relayed.NextTries, after.NextAt)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.SettleTimeout)
	defer cancel()
	var batch pgx.Batch
	queueMessageChanges(&batch, changes)
	queueStreamUsage(&batch, usage)
	streams.Queue(&batch, &relayed)
	batch.Queue("commit")
	return relayed, bodiless, conn.SendBatch(ctx, &batch).Close()
}

// lockDueMessages begins a transaction and locks due messages. If it returns none, it has ended the transaction.
// bodiless counts due rows without a body, which are not in due.
func lockDueMessages(ctx context.Context, conn *pgx.Conn, limit int, held Held) (due []Due, streams store.StreamStates, now time.Time, bodiless int, err error) {
	var anyDue bool
	if err := conn.QueryRow(ctx, anyMessageDueSQL).Scan(&anyDue); err != nil || !anyDue {
		return nil, nil, now, 0, err
	}
	streams = store.StreamStates{}
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue(lockDueMessagesSQL, limit, store.ProbeMessages, held.Streams, held.Callers).Query(func(rows pgx.Rows) (err error) {
		var stream string
		var room int
		var failures *int32
		bodiless, err = scanClaimed(rows, func(m Detail, at time.Time) {
			due, now = append(due, Due{Detail: m, MsgID: m.MsgID(m.ID.String(), m.Fingerprint), stream: stream}), at
			streams.AddRow(stream, m.CallerID, room, failures)
		}, &stream, &room, &failures)
		return err
	})
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, nil, now, 0, err
	}
	if len(due) == 0 {
		store.Rollback(conn)
	}
	return due, streams, now, bodiless, nil
}
