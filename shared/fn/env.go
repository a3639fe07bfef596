package fn

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/cache"
	"github.com/sendonce/sendonce/shared/loglimit"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/telemetry"
	"github.com/sendonce/sendonce/shared/waiters"
)

// Env is what the functions of a process share. It has no state that other processes need.
type Env struct {
	Config settings.Config
	Log    *slog.Logger

	// Stores are nil only where a command runs without DATABASE_URL.
	stores.Stores

	db               *store.DB
	bus              *bus.Bus // nil without NATS_URL
	waiters          *waiters.List
	subscribeQueues  sync.Once
	subscribeCallers sync.Once
	limiter          *callLimiter
	budget           *memoryBudget
	auth             *auth.Authenticator
	frames           *callerSemaphores // of sockets
	reads            *callerSemaphores // of events, for streams and sockets
	anonymousPages   *semaphore.Weighted
	anonymousSlots   *callerSemaphores // of anonymousPages, by address
	sessionKeys      func() store.Keys
	database         *cache.Value[struct{}] // pings it, for /readyz
	metrics          func() *telemetry.Metrics
	scraped          sync.Map   // *telemetry.Endpoint by path
	snapshots        *snapshots // nil without DATABASE_URL
	alerts           task.AlertRules

	failures loglimit.ByKey[failureKind]

	alertCheckUntil atomic.Int64 // until then this process schedules no further check, in Unix nanoseconds
}

// NewEnv returns the Env of a process. It does not use the network. Some zero fields of cfg get
// their defaults (see settings.Config.SetDefaults). The caller must call Close.
func NewEnv(cfg settings.Config, log *slog.Logger) (*Env, error) {
	cfg.SetDefaults()
	env := &Env{
		Config: cfg, Log: log, alerts: cfg.Alerts.Rules(), waiters: waiters.New(),
		limiter: newCallLimiter(&cfg), budget: newMemoryBudget(cfg.MemoryMB, cfg.CallerShare),
		frames: newCallerSemaphores(framesAtOnce), reads: newCallerSemaphores(readsAtOnce()),
		anonymousPages: semaphore.NewWeighted(anonymousPages), anonymousSlots: newCallerSemaphores(anonymousPerAddress),
	}
	env.sessionKeys = sync.OnceValue(func() store.Keys {
		keys, _ := store.ParseKeys(cfg.EncryptionKeys) // Validate has checked them
		return keys
	})
	env.metrics = sync.OnceValue(env.newMetrics)
	var err error
	var hash *auth.PasswordHash
	if cfg.PasswordHash != "" {
		if hash, err = auth.ParsePasswordHash(cfg.PasswordHash); err != nil {
			return nil, &bus.SettingError{Name: "BASIC_AUTH_PASSWORD_HASH", Message: err.Error()}
		}
	}
	cfg.Bus.AcceptStream, cfg.Bus.AcceptShards = cfg.TwoPhase.Stream, cfg.TwoPhase.Shards
	if env.bus, err = bus.Open(cfg.Bus, log); err != nil {
		return nil, err
	}
	if cfg.DatabaseURL == "" {
		env.auth = auth.New(cfg.Username, cfg.Password, hash, withoutDatabase{}, nil, log)
		env.database = newDatabaseProbe(func(context.Context) error { return errNoDatabase })
		return env, nil
	}
	storesCfg := storesConfig(&cfg)
	storesCfg.OnEvents = func() { env.WakeRelayAt(time.Time{}) }
	storesCfg.OnAlert = env.logAlert
	storesCfg.OnPending = env.WakeClaims
	if env.alerts.FailureRate.On() {
		storesCfg.OnFailed = env.scheduleAlertCheck
	}
	db, all, err := stores.Open(storesCfg)
	if err != nil {
		return nil, err
	}
	env.db, env.Stores = db, all
	env.snapshots = newSnapshots(env.readSnapshot)
	env.auth = auth.New(cfg.Username, cfg.Password, hash, all.Callers, env.watchCallers, log)
	env.database = newDatabaseProbe(db.Ping)
	return env, nil
}

func storesConfig(c *settings.Config) stores.Config {
	keys, _ := store.ParseKeys(c.EncryptionKeys) // Validate has checked them
	return stores.Config{
		URL: c.DatabaseURL, Roles: store.Roles(c.Roles), MaxConns: c.MaxConns, Pooler: c.Pooler, StatusOf: statusOf, Keys: keys,
		Events: c.TaskEvents, Backoff: c.RetryBackoff, PhoneCountry: c.PhoneCountry, Alerts: c.Alerts.Rules(),
		Keep:    maintenance.Retention{TaskDays: c.RetentionDays, LogDays: c.LogDays},
		Waiting: quota.Waiting{Items: c.Waiting, Bytes: c.WaitingMB << 20}, WaitingTasks: c.WaitingTasks,
		OperatorCallers: c.OperatorCallers, StreamBytes: c.Bus.Sizes(), Inbox: c.Bus.InboxMessages,
	}
}

// HasDatabase reports whether DATABASE_URL is set.
func (e *Env) HasDatabase() bool { return e.db != nil }

// DatabaseConnections returns the number of connections to the database that this process has.
func (e *Env) DatabaseConnections() (n int32) {
	for _, pool := range e.db.Stats() {
		n += pool.TotalConns()
	}
	return n
}

// Bus returns the connection to NATS. Without NATS_URL it is nil, and its methods may still be called.
func (e *Env) Bus() *bus.Bus { return e.bus }

// RegisterWaiter registers a long poll for tasks of the queue. The first call subscribes to the
// wake-ups of other processes. After a gap in that subscription only the oldest poll of each queue
// is woken: otherwise a thousand polls would query at once, and an app that gets tasks claims again.
func (e *Env) RegisterWaiter(queue string) *waiters.Waiter {
	e.subscribeQueues.Do(func() {
		e.bus.OnQueue(func(queue string, n int) { e.waiters.Notify(queue, n) }, e.waiters.NotifyEach)
	})
	return e.waiters.Register(queue)
}

// WakeClaims wakes waiting claims for n tasks of the queue that became pending: claims of this
// process first, then those of other processes. Call it after the commit. It never blocks.
func (e *Env) WakeClaims(queue string, n int) {
	if e.alerts.Backlog.On() {
		e.scheduleAlertCheck()
	}
	if n -= e.waiters.Notify(queue, n); n > 0 {
		e.bus.Wake(bus.QueueSubject(queue), n)
	}
}

// WakeSweepAt wakes sweep at a time; the zero time = never. A wake-up may be lost: then the
// safety tick or a claim finds what is due.
func (e *Env) WakeSweepAt(at time.Time) {
	if !at.IsZero() {
		e.bus.WakeAt(bus.WakeSweep, at)
	}
}

// WakeAgainAt wakes the event function of a subject at a time; the zero time = never. Unlike
// WakeSweepAt it also schedules a wake-up if an earlier call did so for the same time: if the clock
// of NATS is ahead, the earlier wake-up may have come too early.
func (e *Env) WakeAgainAt(subject string, at time.Time) {
	if !at.IsZero() {
		e.bus.WakeAgainAt(subject, at)
	}
}

// NotBefore returns the later of at and now plus delay, or zero for a zero at. It is for the next
// query after rows that are due were skipped: another process has locked them, so a query at once
// would skip them again.
func NotBefore(at time.Time, delay time.Duration) time.Time {
	if earliest := time.Now().Add(delay); !at.IsZero() && at.Before(earliest) {
		return earliest
	}
	return at
}

// Draining returns a channel that is closed when the process receives SIGTERM or SIGINT. A long
// poll must then return at once.
func (e *Env) Draining() <-chan struct{} { return e.limiter.draining }

// WakeRelayAt wakes relay at a time; the zero time = now. The wake-up may be lost, as that of
// WakeSweepAt.
func (e *Env) WakeRelayAt(at time.Time) { e.bus.WakeAt(bus.WakeRelay, at) }

// WakeDeliverAt is WakeRelayAt for deliver, which sends webhooks and messages to URLs.
func (e *Env) WakeDeliverAt(at time.Time) { e.bus.WakeAt(bus.WakeDeliver, at) }

// WakeSaveAt is WakeRelayAt for save, which makes room in the stream of accepted messages.
func (e *Env) WakeSaveAt(at time.Time) { e.bus.WakeAt(bus.WakeSave, at) }

// WakeForMessage wakes the function that sends messages of the kind: one is due now.
func (e *Env) WakeForMessage(kind message.Kind) {
	if kind == message.URL {
		e.WakeDeliverAt(time.Time{})
	} else {
		e.WakeRelayAt(time.Time{})
	}
}

// WakeWeChatAt is WakeRelayAt for wechat, which sends the tasks of the queue wechat.
func (e *Env) WakeWeChatAt(at time.Time) { e.bus.WakeAt(bus.WakeWeChat, at) }

// Metrics returns the metrics of this process.
func (e *Env) Metrics() *telemetry.Metrics { return e.metrics() }

func (e *Env) newMetrics() *telemetry.Metrics {
	m := telemetry.New(e.Log)
	m.Registry.Collect(e.collect)
	return m
}

// collect adds the current state of this process to a scrape.
func (e *Env) collect(s *metrics.Scrape) {
	s.Gauge("http_requests_under_way", "Calls in progress, waiting polls included.", float64(e.limiter.countInFlight()))
	for kind, n := range e.limiter.usedSlots() {
		s.Gauge("calls_taken", "Slots for calls in use, by kind.", float64(n), "kind", kind)
	}
	s.Gauge("memory_budget_used_bytes", "Bytes of SENDONCE_MEMORY_MB that calls use.", float64(e.budget.inUse()))
	s.Counter("bus_dropped_hints_total", "Wake-ups that could not be sent when they were due.", float64(e.bus.FailedSends()))
	s.Counter("bus_denied_total", "Publications and subscriptions that the permissions of NATS did not allow; at most one a minute is logged.", float64(e.bus.Denied()))
	if e.db == nil {
		return
	}
	for pool, n := range e.db.Stats() {
		for state, n := range map[string]int32{"busy": n.AcquiredConns(), "idle": n.IdleConns(), "connecting": n.ConstructingConns()} {
			s.Gauge("db_connections", "Connections to Postgres.", float64(n), "pool", pool, "state", state)
		}
		s.Gauge("db_connections_max", "Limit of the connections to Postgres.", float64(n.MaxConns()), "pool", pool)
		s.Counter("db_waits_total", "Times that no connection was idle.", float64(n.EmptyAcquireCount()), "pool", pool)
		s.Counter("db_wait_seconds_total", "Time spent waiting for a connection.", n.EmptyAcquireWaitTime().Seconds(), "pool", pool)
	}
}

// Close ends the connections to the database and to NATS.
func (e *Env) Close() {
	e.bus.Close()
	if e.db != nil {
		e.db.Close()
	}
}
