package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DDL creates the table of this package in the first schema of the search path. It is idempotent. The table
// refuses an empty id, since all messages without an id would count as duplicates of each other.
const DDL = `
CREATE TABLE IF NOT EXISTS message_inbox (
	consumer    text COLLATE "C" NOT NULL CHECK (consumer <> ''),
	message_id  text COLLATE "C" NOT NULL CHECK (message_id <> ''),
	received_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (consumer, message_id)
);
CREATE INDEX IF NOT EXISTS message_inbox_received_at ON message_inbox (consumer, received_at);
`

const (
	// maxSchedule is the longest time from the first to the last of 20 sends (more are not allowed). The 19 pauses are
	// 10 s, 1 min, 10 min, and then 1 h each, plus at most a fifth for jitter.
	maxSchedule = (10*time.Second + time.Minute + 10*time.Minute + 16*time.Hour) * 6 / 5
	// streamAge is how long the stream MESSAGES keeps the last send by default, and so how late a consumer can read it.
	streamAge = 7 * 24 * time.Hour

	// MinKeep is the shortest age at which Prune deletes a row. A message with a younger row may still be delivered
	// again.
	MinKeep = maxSchedule + streamAge
)

// waitForStandbySQL makes the commit of a transaction wait until the synchronous standby, if there is one, has this
// commit and so all earlier ones.
const waitForStandbySQL = `SELECT pg_logical_emit_message(true, 'sendonce', '')`

// rollbackTimeout limits a rollback, which must also run after the caller's context has ended.
const rollbackTimeout = 5 * time.Second

const insertSQL = `INSERT INTO message_inbox (consumer, message_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`

// Once runs effect unless consumer has processed the message before. first reports whether effect ran. effect must write
// through tx, and must not end tx. The caller commits and then confirms, also if first is false:
//
//	_, err := inbox.Once(ctx, tx, "points", id, effect)
//	if err != nil {
//		return err // not confirmed: the message is delivered again
//	}
//	if err := tx.Commit(ctx); err != nil {
//		return err
//	}
//	return confirm(ctx, id)
//
// Once waits while another open transaction has called Once for the same consumer and message. If effect fails,
// Once rolls tx back, so that the row cannot be committed without the effect. If effect ends tx, such as with the statement
// ROLLBACK, and begins no other, Once returns an error.
func Once(ctx context.Context, tx pgx.Tx, consumer, messageID string, effect func(ctx context.Context) error) (first bool, err error) {
	tag, err := tx.Exec(ctx, insertSQL, consumer, messageID)
	if err != nil {
		return false, fmt.Errorf("inbox: %w", err)
	}
	if tag.RowsAffected() == 0 {
		// The standby may not have the earlier commit yet, although it is visible: Postgres was restarted, or the wait was
		// cancelled. A commit that changes nothing would not wait for the standby, and after a fail-over the effect would be lost.
		if _, err := tx.Exec(ctx, waitForStandbySQL); err != nil {
			return false, fmt.Errorf("inbox: %w", err)
		}
		return false, nil
	}
	if err := effect(ctx); err != nil {
		return true, errors.Join(err, rollBack(ctx, tx))
	}
	if tx.Conn().PgConn().TxStatus() == 'I' { // no transaction: the caller's commit would succeed and store nothing
		return true, errors.New("inbox: the effect ended the transaction; it must leave this to the caller of Once")
	}
	return true, nil
}

func rollBack(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		return fmt.Errorf("inbox: roll back: %w", err)
	}
	return nil
}

const pruneBatch = 1000 // rows of one transaction

const pruneSQL = `
DELETE FROM message_inbox WHERE consumer = $1 AND message_id IN (
	SELECT message_id FROM message_inbox
	WHERE consumer = $1 AND received_at < now() - $2::interval
	ORDER BY received_at LIMIT $3 FOR UPDATE SKIP LOCKED)`

// Prune deletes the rows of consumer that are older than olderThan, in small transactions, and returns their number.
// resendHorizon is how long after its first delivery a message may be delivered again at the latest: by a redrive, from
// a restored backup of the sender, or because a new consumer reads it from its stream. So it is at least
// SENDONCE_STREAM_MESSAGES_MAX_AGE or, for messages to users, SENDONCE_STREAM_USERS_MAX_AGE. Prune returns an error if
// olderThan is less than resendHorizon or MinKeep. Several calls may run at once.
func Prune(ctx context.Context, db *pgxpool.Pool, consumer string, olderThan, resendHorizon time.Duration) (n int64, err error) {
	if keep := max(MinKeep, resendHorizon); olderThan < keep {
		return 0, fmt.Errorf("inbox: prune: messages may be delivered again for %s, so olderThan must be at least this long, not %s", keep, olderThan)
	}
	for {
		tag, err := db.Exec(ctx, pruneSQL, consumer, olderThan, pruneBatch)
		if err != nil {
			return n, fmt.Errorf("inbox: prune: %w", err)
		}
		n += tag.RowsAffected()
		if tag.RowsAffected() < pruneBatch {
			return n, nil
		}
	}
}
