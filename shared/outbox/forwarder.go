package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/retry"
)

const (
	batchSize     = 16 // rows of one transaction, sent in parallel
	pollEvery     = 5 * time.Second
	settleTimeout = 5 * time.Second // of storing the outcomes of a batch, and of a rollback
	maxWait       = time.Minute     // the longest backoff, without jitter and unless Retry-After is longer
	maxReason     = 500             // characters of last_error
)

// Forwarder sends messages from the table to a Sendonce service.
type Forwarder struct {
	db      *pgxpool.Pool
	service *api.Client
	log     *slog.Logger
	wake    chan struct{}
	poll    time.Duration
}

// NewForwarder returns a forwarder that is idle until Run or Drain. It uses the address, credentials
// and connections of service.
func NewForwarder(db *pgxpool.Pool, service *api.Client, log *slog.Logger) *Forwarder {
	return &Forwarder{db: db, service: service, log: log, wake: make(chan struct{}, 1), poll: pollEvery}
}

// Wake makes Run read the table at once instead of within five seconds. While Run waits because the service or the
// database was unavailable, Wake does not end this wait. Call Wake after the commit of a Put. Wake never blocks.
func (f *Forwarder) Wake() {
	select {
	case f.wake <- struct{}{}:
	default: // a wake-up is pending
	}
}

// Run forwards until ctx ends: at once, after each Wake and every five seconds. If the service or the database is unavailable,
// Run logs that and waits five seconds or the Retry-After of the service, whichever is longer.
func (f *Forwarder) Run(ctx context.Context) {
	for {
		wake, pause := f.wake, f.poll
		if _, err := f.Drain(ctx); err != nil && ctx.Err() == nil {
			f.log.WarnContext(ctx, "outbox: not forwarded", "error", err)
			// A new message is no reason to try earlier: the service is unavailable.
			wake = nil
			var response *api.Error
			if errors.As(err, &response) {
				pause = max(pause, response.RetryAfter)
			}
		}
		select {
		case <-wake:
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// Drain sends all due messages and returns how many the service accepted. It stops with an error if
// the database or the service is unavailable. If a message is refused or must be sent later, Drain logs that and goes on:
// the message stays in the table.
func (f *Forwarder) Drain(ctx context.Context) (n int, err error) {
	for {
		found, accepted, err := f.forwardBatch(ctx)
		n += accepted
		if err != nil {
			return n, fmt.Errorf("outbox: forward: %w", err)
		}
		if found < batchSize {
			return n, nil
		}
	}
}

// row is a locked message, and the outcome of its POST.
type row struct {
	id    string
	body  string
	tries int
	outcome
}

// forwardBatch finds due rows, and then locks, sends and settles them in one transaction. While the rows are locked,
// other forwarders skip them. found is how many due rows there were, at most batchSize.
func (f *Forwarder) forwardBatch(ctx context.Context) (found, accepted int, err error) {
	ids, err := f.due(ctx)
	if err != nil || len(ids) == 0 {
		return 0, 0, err
	}
	tx, err := f.db.Begin(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, rollBack(ctx, tx)) }()

	rows, err := lock(ctx, tx, ids)
	if err != nil || len(rows) == 0 { // no rows: another forwarder has locked or sent them
		return len(ids), 0, err
	}
	var posts sync.WaitGroup
	for i := range rows {
		posts.Go(func() { rows[i].outcome = post(ctx, f.service, rows[i].id, rows[i].body) })
	}
	posts.Wait()

	// Store the outcomes even if ctx has ended.
	settleCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := settle(settleCtx, tx, rows); err != nil {
		return 0, 0, err
	}
	if err := tx.Commit(settleCtx); err != nil {
		return 0, 0, fmt.Errorf("commit: %w", err)
	}
	accepted, err = f.report(ctx, rows)
	return len(ids), accepted, err
}

// dueSQL locks the rows only to get a transaction id: without one, its commit would not wait for the synchronous
// standby, if there is one. This commit unlocks the rows.
const dueSQL = `
SELECT id::text FROM message_outbox
WHERE refused_at IS NULL AND next_at <= now()
ORDER BY next_at, id LIMIT $1 FOR UPDATE SKIP LOCKED`

// due returns the ids of due rows that the standby has. The standby may lack a row that is visible: Postgres was
// restarted, or somebody cancelled the wait of the transaction that added the row. A fail-over would undo that
// transaction, so the message must not be sent yet.
func (f *Forwarder) due(ctx context.Context) ([]string, error) {
	rows, _ := f.db.Query(ctx, dueSQL, batchSize)        // CollectRows returns its error
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string]) // returns after the commit
	if err != nil {
		return nil, fmt.Errorf("find: %w", err)
	}
	return ids, nil
}

// rollBack rolls tx back, also after ctx has ended. After a commit it does nothing.
func rollBack(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

// report counts accepted messages, and logs each message that was refused or must be sent later. If the service is
// unavailable, it returns the cause.
func (f *Forwarder) report(ctx context.Context, rows []row) (accepted int, unavailable error) {
	for _, r := range rows {
		switch r.verdict {
		case verdictAccepted:
			accepted++
		case verdictRefused:
			f.log.ErrorContext(ctx, "outbox: message refused", "id", r.id, "error", r.err)
		case verdictLater:
			f.log.WarnContext(ctx, "outbox: message not accepted, it is sent again later", "id", r.id, "tries", r.tries+1, "error", r.err)
		case verdictUnavailable:
			unavailable = r.err
		}
	}
	return accepted, unavailable
}

// If the forwarder's host fails, Postgres releases the row locks after 30 s. TCP alone would notice the failure later.
const idleSQL = `SELECT set_config('idle_in_transaction_session_timeout', '30s', true)`

const lockSQL = `
SELECT id::text, body::text, tries FROM message_outbox
WHERE id = ANY ($1::text[]::uuid[]) AND refused_at IS NULL AND next_at <= now()
ORDER BY next_at, id FOR UPDATE SKIP LOCKED`

func lock(ctx context.Context, tx pgx.Tx, ids []string) ([]row, error) {
	var found []row
	batch := &pgx.Batch{}
	batch.Queue(idleSQL)
	batch.Queue(lockSQL, ids).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, func(c pgx.CollectableRow) (r row, err error) {
			return r, c.Scan(&r.id, &r.body, &r.tries)
		})
		return err
	})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	return found, nil
}

const deleteSQL = `DELETE FROM message_outbox WHERE id = ANY ($1::text[]::uuid[])`

// keepSQL stores why a message was not accepted. It uses clock_timestamp(), since now() is the start of the
// transaction, before the service was called.
const keepSQL = `
UPDATE message_outbox o SET tries = o.tries + 1, last_error = k.reason, next_at = clock_timestamp() + k.wait,
	refused_at = CASE WHEN k.refused THEN clock_timestamp() END
FROM unnest($1::text[], $2::text[], $3::bool[], $4::interval[]) AS k (id, reason, refused, wait)
WHERE o.id = k.id::uuid`

// settle deletes the rows of accepted messages, and changes the rows of failed ones.
func settle(ctx context.Context, tx pgx.Tx, rows []row) error {
	var (
		accepted, kept, reasons []string
		refused                 []bool
		waits                   []time.Duration
	)
	for _, r := range rows {
		switch r.verdict {
		case verdictAccepted:
			accepted = append(accepted, r.id)
		case verdictStopped: // unchanged
		default:
			kept, reasons = append(kept, r.id), append(reasons, storable(r.err.Error()))
			refused = append(refused, r.verdict == verdictRefused)
			waits = append(waits, max(retry.Jitter(retry.Delay(time.Second, maxWait, r.tries+1)), r.retryAfter))
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(deleteSQL, accepted)
	batch.Queue(keepSQL, kept, reasons, refused, waits)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return nil
}

// storable replaces bytes that Postgres does not accept in text, and cuts the text to maxReason characters.
func storable(s string) string {
	runes := []rune(strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?"))
	return string(runes[:min(len(runes), maxReason)])
}
