package fn

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/cache"
	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/loglimit"
	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/overview"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/telemetry"
	"github.com/sendonce/sendonce/shared/waiters"
)

// Env is what the functions of a process share. It has no state that other processes need.
type Env struct {
	Config settings.Config
	Log    *slog.Logger

	stores.Stores // the zero value if DATABASE_URL is not set, as some commands allow

	db                 *store.DB
	bus                *bus.Bus // nil without NATS_URL
	waiters            *waiters.List
	subscribeQueues    sync.Once
	subscribeCallers   sync.Once
	limiter            *callLimiter
	budget             *memoryBudget
	auth               *auth.Authenticator
	frames             *callerSemaphores        // for the frames of sockets
	reads              *callerSemaphores        // for reads of events, see Call.AcquireRead
	anonymousPages     *semaphore.Weighted      // for the pages of visitors who are not logged in
	anonymousSlots     *callerSemaphores        // for these pages, by the address of the visitor
	anonymousResponses httpserver.OpenResponses // of these pages
	sessionKeys        store.Keys
	databaseProbe      *cache.Value[struct{}] // pings the database, for /readyz
	metrics            *telemetry.Metrics
	metricsEndpoints   sync.Map                        // *telemetry.Endpoint by path
	snapshot           *cache.Value[overview.Snapshot] // nil without DATABASE_URL
	alerts             task.AlertRules

	failures loglimit.ByKey[failureKind]

	alertCheckIdleUntil atomic.Int64 // until then scheduleAlertCheck does nothing; in Unix nanoseconds
}

// failureKind is the key by which the log lines of failed calls are limited.
type failureKind struct{ function, code string }

// HasDatabase reports whether DATABASE_URL is set.
func (e *Env) HasDatabase() bool { return e.db != nil }

// DatabaseConnections returns the number of connections to the database that this process has.
func (e *Env) DatabaseConnections() (n int32) {
	for _, pool := range e.db.Stats() {
		n += pool.TotalConns()
	}
	return n
}

// Bus returns the connection to NATS. Without NATS_URL, Bus returns nil, whose methods may still be called.
func (e *Env) Bus() *bus.Bus { return e.bus }

// Draining returns a channel that is closed when the drain begins, after SIGTERM or SIGINT. A long
// poll must then return at once.
func (e *Env) Draining() <-chan struct{} { return e.limiter.draining }

// IsDraining reports whether the channel of Draining is closed.
func (e *Env) IsDraining() bool { return e.limiter.isDraining() }

// Metrics returns the metrics of this process.
func (e *Env) Metrics() *telemetry.Metrics { return e.metrics }

// collect adds the current state of this process to a scrape.
func (e *Env) collect(s *metrics.Scrape) {
	s.Gauge("http_requests_under_way", "Calls in progress, including waiting polls, streams and WebSockets.", float64(e.limiter.countInFlight()))
	for kind, n := range e.limiter.usedSlots() {
		s.Gauge("calls_taken", "Slots in use, by kind: calls, waiting (polls, streams and WebSockets), reserved (for admins), events.", float64(n), "kind", kind)
	}
	s.Gauge("memory_budget_used_bytes", "Bytes of SENDONCE_MEMORY_MB that calls use.", float64(e.budget.inUse()))
	s.Counter("bus_failed_sends_total", "Failed sends of wake-ups, schedules and notices of changed callers; most are tried again.", float64(e.bus.FailedSends()))
	s.Counter("bus_denied_total", "Publications and subscriptions that the permissions of NATS did not allow; at most one a minute is logged.", float64(e.bus.Denied()))
	if e.db == nil {
		return
	}
	for pool, n := range e.db.Stats() {
		for state, n := range map[string]int32{"busy": n.AcquiredConns(), "idle": n.IdleConns(), "connecting": n.ConstructingConns()} {
			s.Gauge("db_connections", "Connections to Postgres.", float64(n), "pool", pool, "state", state)
		}
		s.Gauge("db_connections_max", "Limit of the connections to Postgres.", float64(n.MaxConns()), "pool", pool)
		s.Counter("db_waits_total", "Times that a connection was needed and none was idle.", float64(n.EmptyAcquireCount()), "pool", pool)
		s.Counter("db_wait_seconds_total", "Time spent waiting for a connection.", n.EmptyAcquireWaitTime().Seconds(), "pool", pool)
	}
}

// Snapshot returns the state of the whole service. All callers share one snapshot for snapshotKeep, or for longer
// (see snapshotSpacing), and while the next one is read, so a caller must not change it. If the state cannot be read,
// Snapshot returns the error and the last snapshot. The field At is when this last snapshot was read, or zero if this
// process has never read one.
func (e *Env) Snapshot() (overview.Snapshot, error) { return e.snapshot.Get() }

// readSnapshot first updates the counters in the database, and then reads a snapshot. If the counters cannot be
// updated, the snapshot has their old values, and current values of everything else.
func (e *Env) readSnapshot(ctx context.Context) (overview.Snapshot, error) {
	counting, cancel := context.WithTimeout(ctx, countTimeout)
	err := e.Stores.Overview.Count(counting, overview.Lag)
	cancel()
	if err != nil && ctx.Err() == nil {
		e.Log.Warn("the counters of the overview were not updated", "cause", err.Error())
	}
	return e.Stores.Overview.Read(ctx)
}

// Close ends the connections to the database and to NATS.
func (e *Env) Close() {
	e.bus.Close()
	if e.db != nil {
		e.db.Close()
	}
}
