package store

import (
	"context"
	"crypto/rand"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/task"
)

// Config says where the database is and as whom the functions log in.
type Config struct {
	URL          string // postgres:// URL; several hosts are allowed, see pgx
	Roles        Roles
	MaxConns     int                   // per pool; 0 = 8
	StatusOf     func(code string) int // the HTTP status of a refusal, for receive_logs.status_code
	Pooler       bool                  // behind PgBouncer in transaction mode: no prepared statements are kept
	Events       EventMode             // which changes of tasks are told
	Backoff      task.Backoff          // how long retries wait, by queue
	Keep         Retention             // how long what is over stays
	PhoneCountry task.Country          // whose numbers may be written without a country code
	Alerts       task.AlertRules       // which queues somebody should hear of
	Keys         Keys                  // encrypt the secrets that are stored
	Waiting      Waiting               // messages that each caller may have waiting; 0 = no limit
	WaitingTasks int64                 // tasks of each caller that may be not final; 0 = no limit
	StreamBytes  map[string]int64      // the size of each stream of which no caller may take more than a share
	Inbox        int                   // messages that a user's inbox holds; no sender may send more than a quarter within 15 minutes; 0 = no limit
	OnEvents     func()                // called after a commit that wrote events to be relayed; nil = nobody listens
	OnFailed     func()                // called after a commit of failures that count for alerts; nil = nobody listens

	// OnAlert is called after the commit that raised an alert, and after the one
	// that cleared it, with the value that did; nil = nobody listens.
	OnAlert func(id task.ID, a task.Alert, cleared bool)
}

// DB is every table of Sendonce. It makes no network call before its first use.
type DB struct {
	pools
	salt []byte // of the proofs of tokens that this process compares

	submits                   *coalescer[*Submission, Submitted]
	reports                   *coalescer[*Report, Reported]
	messages                  *coalescer[*NewMessage, SavedMessage]
	messageQuotas, taskQuotas quotas
	shares                    streamShares
	inboxes                   inboxShares
	blocked                   blockedWords
	floors                    claimFloors
	giving                    givingQueues
	claimIDs                  claimIDs
	statusOf                  func(code string) int
	events                    EventMode
	onEvents                  func()
	onFailed                  func()
	onAlert                   func(id task.ID, a task.Alert, cleared bool)
	alerts                    task.AlertRules
	watchAfter                atomic.Int64 // when Watch may look again here, in Unix nanoseconds
	backoff                   task.Backoff
	phones                    task.Country
	keep                      Retention
	keys                      Keys
	countTime                 time.Duration // see countTime
	hotHasRole                bool          // its settings are those of migrate
	refreshing                chan struct{} // full while this instance refreshes a provider's token
}

// Open prepares the pools without connecting: the first call that needs one pays
// for it.
func Open(cfg Config) (*DB, error) {
	pools, err := openPools(cfg)
	if err != nil {
		return nil, err
	}
	db := &DB{
		pools: pools, salt: newSalt(), statusOf: cfg.StatusOf, events: cfg.Events, backoff: cfg.Backoff, phones: cfg.PhoneCountry, keep: cfg.Keep, keys: cfg.Keys, alerts: cfg.Alerts,
		onEvents: orNothing(cfg.OnEvents), onFailed: orNothing(cfg.OnFailed), onAlert: cfg.OnAlert,
		countTime: countTime, refreshing: make(chan struct{}, 1), hotHasRole: cfg.Roles.Hot != "",
	}
	if db.onAlert == nil {
		db.onAlert = func(task.ID, task.Alert, bool) {}
	}
	db.submits = newCoalescer(func(s *Submission) int64 { return s.CallerID }, db.flushSubmissions)
	db.reports = newCoalescer(func(r *Report) int64 { return r.CallerID }, db.flushReports)
	db.messages = newCoalescer(func(m *NewMessage) int64 { return m.CallerID }, db.flushMessages)
	db.messageQuotas = quotas{byDefault: cfg.Waiting, count: db.countMessages}
	db.taskQuotas = quotas{byDefault: Waiting{Items: cfg.WaitingTasks}, together: &counter{}}
	db.taskQuotas.count = func(ctx context.Context, _, _ int64) (map[int64]Waiting, int64, error) {
		of, err := db.countTasks(ctx, taskSample)
		return of, 0, err
	}
	db.shares.look = db.sharesExceeded(cfg.StreamBytes)
	db.inboxes = inboxShares{limit: cfg.Inbox / inboxPart, saved: db.sentToUser}
	return db, nil
}

func newSalt() []byte {
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	return salt
}

func orNothing(call func()) func() {
	if call == nil {
		return func() {}
	}
	return call
}

// Close ends the pools after the statements under way.
func (db *DB) Close() { db.pools.close() }

// Stats is what each pool of connections, by name, is doing.
func (db *DB) Stats() map[string]*pgxpool.Stat {
	stats := map[string]*pgxpool.Stat{}
	for name, pool := range db.pools.byName() {
		stats[name] = pool.Stat()
	}
	return stats
}

// Bounds of running a transaction again when its outcome is unknown.
const (
	retryFirst   = 20 * time.Millisecond
	retryLongest = 500 * time.Millisecond
)

// retrying runs a transaction, and runs it again until ctx ends while the
// answer to its commit is lost: the caller must have made every effect
// recognisable, and is told that an earlier try may have been committed, or be
// about to be. What it saw of one is certain when retrying returns.
func (db *DB) retrying(ctx context.Context, run func(again bool) error) error {
	lost := false
	defer func() {
		if lost { // the try whose answer was lost may have written some
			db.onEvents()
			db.onFailed()
		}
	}()
	for wait := retryFirst; ; wait = min(2*wait, retryLongest) {
		err := db.withPartitions(ctx, func() error { return run(lost) })
		if isLost(err) {
			lost = true
		}
		if err == nil && lost {
			err = db.makeCertain(ctx)
		}
		if err == nil || !lost || !passing(err) && !metItself(err) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// makeCertain waits for the standby where commits do, by a commit after all that was
// seen: a primary that was restarted, or whose session was ended while it waited,
// shows what no standby has.
func (db *DB) makeCertain(ctx context.Context) error {
	_, err := db.hot.Exec(ctx, "select pg_logical_emit_message(true, 'sendonce', '')")
	return err
}

// metItself tells whether a row's id was taken by its own earlier try, whose
// commit was under way.
func metItself(err error) bool {
	return violates(err, "tasks_pkey") || violates(err, "task_live_pkey")
}

// withPartitions runs a transaction, and once more when a log row of it found
// no partition of its month.
func (db *DB) withPartitions(ctx context.Context, run func() error) error {
	err := run()
	if !missingPartition(err) {
		return err
	}
	if err := db.MakeLogPartitions(ctx); err != nil {
		return err
	}
	return run()
}

// MakeLogPartitions makes the partitions of this month and the three after it
// where they are missing.
func (db *DB) MakeLogPartitions(ctx context.Context) error {
	_, err := db.hot.Exec(ctx, "select make_log_partitions(3)")
	return err
}
