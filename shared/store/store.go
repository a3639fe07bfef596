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
	URL             string // postgres:// URL; several hosts are allowed, see pgx
	Roles           Roles
	MaxConns        int                   // per pool; 0 = 8
	StatusOf        func(code string) int // the HTTP status of a refusal, for receive_logs.status_code
	Pooler          bool                  // behind PgBouncer in transaction mode: no prepared statements are kept
	Events          EventMode             // which changes of tasks are published
	Backoff         task.Backoff          // how long retries wait, by queue
	Keep            Retention             // how long finished rows are kept
	PhoneCountry    task.Country          // whose numbers may be written without a country code
	Alerts          task.AlertRules       // thresholds of queues and streams
	Keys            Keys                  // encrypt the secrets that are stored
	Waiting         Waiting               // limits of each caller's waiting messages; 0 = no limit
	WaitingTasks    int64                 // tasks of each caller that may be not final; 0 = no limit
	OperatorCallers int                   // callers that a limited operator and its callers may make together
	StreamBytes     map[string]int64      // size of each stream; a caller may use only a share of it
	Inbox           int                   // capacity of a user's inbox; one sender may use a quarter of it within 15 minutes; 0 = no limit
	OnEvents        func()                // called after a commit that wrote events for the relay; nil = no call
	OnFailed        func()                // called after a commit of failures that count for alerts; nil = no call

	// OnAlert is called after the commit that raised or cleared an alert. The alert has the
	// value that did it. nil = no call.
	OnAlert func(id task.ID, a task.Alert, cleared bool)
}

// DB reads and writes every table of Sendonce. It makes no network call before its first use.
type DB struct {
	pools
	salt []byte // salts the token hashes that this process compares

	submits                   *coalescer[*Submission, Submitted]
	reports                   *coalescer[*Report, Reported]
	messages                  *coalescer[*NewMessage, SavedMessage]
	messageQuotas, taskQuotas *quotas
	hooks                     Hooks
	blockedWords              func(context.Context) (func(string) bool, error)
	shares                    streamShares
	inboxes                   inboxShares
	blocked                   blockedWords
	operatorCallers           int
	marks                     lowWaterMarks
	nonEmpty                  recentlyNonEmpty
	claimIDs                  claimIDs
	statusOf                  func(code string) int
	events                    EventMode
	onEvents                  func()
	onFailed                  func()
	onAlert                   func(id task.ID, a task.Alert, cleared bool)
	alerts                    task.AlertRules
	nextAlertCheck            atomic.Int64 // when CheckAlerts may run again in this process, in Unix nanoseconds
	backoff                   task.Backoff
	phones, country           task.Country
	keep                      Retention
	keys                      Keys
	countTime                 time.Duration // see countTime
	hotHasRole                bool          // Hot logs in as the role that migrate configures
	refreshing                chan struct{} // full while this instance refreshes a provider's token
}

// Open prepares the pools without connecting. The first call that needs a connection opens it.
func Open(cfg Config) (*DB, error) {
	pools, err := openPools(cfg)
	if err != nil {
		return nil, err
	}
	db := &DB{
		pools: pools, salt: newSalt(), statusOf: cfg.StatusOf, events: cfg.Events, backoff: cfg.Backoff, phones: cfg.PhoneCountry, country: cfg.PhoneCountry, keep: cfg.Keep, keys: cfg.Keys, alerts: cfg.Alerts, operatorCallers: cfg.OperatorCallers,
		onEvents: orNoop(cfg.OnEvents), onFailed: orNoop(cfg.OnFailed), onAlert: cfg.OnAlert,
		countTime: countTime, refreshing: make(chan struct{}, 1), hotHasRole: cfg.Roles.Hot != "",
	}
	if db.onAlert == nil {
		db.onAlert = func(task.ID, task.Alert, bool) {}
	}
	db.submits = newCoalescer(func(s *Submission) int64 { return s.CallerID }, db.flushSubmissions)
	db.reports = newCoalescer(func(r *Report) int64 { return r.CallerID }, db.flushReports)
	db.messages = newCoalescer(func(m *NewMessage) int64 { return m.CallerID }, db.flushMessages)
	db.messageQuotas = newQuotas(cfg.Waiting, db.countMessages)
	db.hooks, db.blockedWords = TaskHooks(), db.WordMatcher
	db.taskQuotas = newJointQuotas(Waiting{Items: cfg.WaitingTasks}, func(ctx context.Context) (map[int64]Waiting, error) { return db.countTasks(ctx, taskSample) })
	db.shares.look = db.sharesExceeded(cfg.StreamBytes)
	db.inboxes = inboxShares{limit: cfg.Inbox / inboxPart, saved: db.sentToUser}
	return db, nil
}

func newSalt() []byte {
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	return salt
}

func orNoop(call func()) func() {
	if call == nil {
		return func() {}
	}
	return call
}

// Close closes the pools when the statements under way have ended.
func (db *DB) Close() { db.pools.close() }

// Stats returns the statistics of each connection pool, by its name.
func (db *DB) Stats() map[string]*pgxpool.Stat {
	stats := map[string]*pgxpool.Stat{}
	for name, pool := range db.pools.byName() {
		stats[name] = pool.Stat()
	}
	return stats
}
