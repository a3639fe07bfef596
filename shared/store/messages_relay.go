package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
)

// anyMessageDueSQL spares the idle relay a transaction.
const anyMessageDueSQL = `select exists (select from message_live where next_at <= now() and remaining_sends > 0 and kind <> 1)`

// lockDueMessagesSQL takes what is due for the broker with its body, earliest
// first. Rows that another relay sends are left to it; what goes to a URL (kind
// 1) is ClaimPosts'.
const lockDueMessagesSQL = `
with l as materialized (
    select * from message_live
    where next_at <= now() and remaining_sends > 0 and kind <> 1
    order by next_at, id
    limit $1
    for update skip locked
)
select ` + messageBody + `, ` + messageLive + `, ` + noReceipts + `, now()
from l` + bodyOfLive

const nextMessageSQL = `
select (select next_at from message_live where remaining_sends > 0 and kind <> 1 order by next_at limit 1)`

// NextMessage is when a message is due for the broker next; zero = none is.
func (db *DB) NextMessage(ctx context.Context) (time.Time, error) {
	at, err := db.instant(ctx, nextMessageSQL)
	return at, failed("next message", err)
}

// DueMessage is a message to be sent now.
type DueMessage struct {
	MessageDetail
	MsgID string // names this send; the same again when it met nobody
}

// Relayed is what one batch of a relay did.
type Relayed struct {
	Rows  int         // messages that were due; fewer than the limit: no more were
	Again []time.Time // when those of them are due again that were given another time, by the database's clock
}

// settleLimit bounds the second half of a relay's transaction: what was
// published is settled even when the relay's own time is up.
const settleLimit = 5 * time.Second

// RelayMessages sends up to limit due messages of the broker, earliest first, and settles all
// of them in one transaction. publish is called with their locks held: it gives
// one result per message, in their order, and must return within 3 s, else
// confirmations stop waiting and, after 10 s, the database takes the locks away.
// Any number of relays may run at once; each message is in the hands of one.
//
// What met nobody stays due in its place (msg.Result.InPlace): the caller must
// pause, or the next call takes the same. A sender's messages to one receiver
// keep their order so while one relay is at work; another one beside it takes
// what is due behind the messages that the first has in hand.
//
// When publish fails, the process dies or the settling is lost, nothing is
// settled: the messages are due as before and will be sent again with the same
// MsgID, by which a broker recognises them.
func (db *DB) RelayMessages(ctx context.Context, limit int, publish func(ctx context.Context, due []DueMessage) ([]msg.Result, error)) (relayed Relayed, err error) {
	conn, err := db.hot.Acquire(ctx)
	if err != nil {
		return relayed, failed("relay", err)
	}
	defer conn.Release()
	relayed, err = relayOnce(ctx, conn.Conn(), limit, publish)
	return relayed, failed("relay", rollbackOn(conn.Conn(), err))
}

func relayOnce(ctx context.Context, conn *pgx.Conn, limit int, publish func(context.Context, []DueMessage) ([]msg.Result, error)) (Relayed, error) {
	due, now, err := lockDueMessages(ctx, conn, limit)
	if err != nil || len(due) == 0 {
		return Relayed{}, err
	}
	results, err := publish(ctx, due)
	if err == nil && len(results) != len(due) {
		err = fmt.Errorf("%d results for %d messages", len(results), len(due))
	}
	if err != nil {
		return Relayed{}, fmt.Errorf("publish: %w", err)
	}
	relayed := Relayed{Rows: len(due)}
	changes, jitter := make([]messageChange, len(due)), rand.Float64()
	for i, m := range due {
		// What must wait stays in its order: one jitter, and a microsecond each.
		after := m.Settle(results[i], now.Add(time.Duration(i)*time.Microsecond), jitter)
		changes[i] = messageChange{m.ID, m.Message, after}
		if after.NextAt.After(now) {
			relayed.Again = append(relayed.Again, after.NextAt)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	var batch pgx.Batch
	queueMessageChanges(&batch, changes)
	batch.Queue("commit")
	return relayed, conn.SendBatch(ctx, &batch).Close()
}

// lockDueMessages begins a transaction and locks what is due; it leaves none
// open when that is nothing.
func lockDueMessages(ctx context.Context, conn *pgx.Conn, limit int) (due []DueMessage, now time.Time, err error) {
	var any bool
	if err := conn.QueryRow(ctx, anyMessageDueSQL).Scan(&any); err != nil || !any {
		return nil, now, err
	}
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue(lockDueMessagesSQL, limit).Query(func(rows pgx.Rows) error {
		return scanMessages(rows, func(m MessageDetail, at time.Time) {
			due, now = append(due, DueMessage{MessageDetail: m, MsgID: m.MsgID(m.ID.String(), m.Fingerprint)}), at
		})
	})
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, now, err
	}
	if len(due) == 0 {
		rollback(conn)
	}
	return due, now, nil
}
