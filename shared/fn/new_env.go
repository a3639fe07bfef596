package fn

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/cache"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/telemetry"
	"github.com/sendonce/sendonce/shared/waiters"
)

// NewEnv returns the Env of a process. It opens no connection. Some zero fields of cfg get their
// defaults (see settings.Config.SetDefaults). Call Env.Close at the end.
func NewEnv(cfg settings.Config, log *slog.Logger) (*Env, error) {
	cfg.SetDefaults()
	keys, _ := store.ParseKeys(cfg.EncryptionKeys) // Config.Validate reports bad keys
	env := &Env{
		Config: cfg, Log: log, alerts: cfg.Alerts.Rules(), waiters: waiters.New(), sessionKeys: keys, metrics: telemetry.New(log),
		limiter: newCallLimiter(&cfg), budget: newMemoryBudget(cfg.MemoryMB, cfg.CallerShare),
		frames: newCallerSemaphores(framesAtOnce), reads: newCallerSemaphores(readsAtOnce()),
		anonymousPages: semaphore.NewWeighted(anonymousPages), anonymousSlots: newCallerSemaphores(anonymousPerAddress),
	}
	env.metrics.Registry.Collect(env.collect)
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
		env.databaseProbe = newDatabaseProbe(func(context.Context) error { return errNoDatabase })
		return env, nil
	}
	storesCfg := storesConfig(&cfg, keys)
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
	env.snapshot = cachedSnapshot(env.readSnapshot)
	env.auth = auth.New(cfg.Username, cfg.Password, hash, all.Callers, env.watchCallers, log)
	env.databaseProbe = newDatabaseProbe(db.Ping)
	return env, nil
}

func storesConfig(c *settings.Config, keys store.Keys) stores.Config {
	return stores.Config{
		Config:   store.Config{URL: c.DatabaseURL, Roles: store.Roles(c.Roles), MaxConns: c.MaxConns, Pooler: c.Pooler, Events: c.TaskEvents, Keys: keys},
		StatusOf: statusOf, Backoff: c.RetryBackoff, PhoneCountry: c.PhoneCountry, Alerts: c.Alerts.Rules(),
		Keep:    maintenance.Retention{TaskDays: c.RetentionDays, LogDays: c.LogDays},
		Waiting: quota.Waiting{Items: c.WaitingMessages, Bytes: c.WaitingMB << 20}, WaitingTasks: c.WaitingTasks,
		OperatorCallers: c.OperatorCallers, StreamBytes: c.Bus.Sizes(), Inbox: c.Bus.InboxMessages,
	}
}

// withoutDatabase is the source of callers if DATABASE_URL is not set.
type withoutDatabase struct{}

var errNoDatabase = errors.New("DATABASE_URL is not set")

func (withoutDatabase) ByName(context.Context, string, bool) (callers.Caller, error) {
	return callers.Caller{}, errNoDatabase
}

func (withoutDatabase) Existing(context.Context, []string) ([]string, error) {
	return nil, errNoDatabase
}

// newDatabaseProbe returns a check of the database that runs at most once a second, so that
// probes do not load the database.
func newDatabaseProbe(ping func(context.Context) error) *cache.Value[struct{}] {
	return &cache.Value[struct{}]{Timeout: 2 * time.Second, Read: func(ctx context.Context) (struct{}, error) { return struct{}{}, ping(ctx) }}
}
