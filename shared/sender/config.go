package sender

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/api"
)

// Config is the configuration of a Sender. Client, AppID, Gateway and Journal are required.
type Config struct {
	Client  *api.Client
	AppID   string // the app's name, 1 to 50 characters
	Queue   string // to claim from; "" = the server's default queue
	Gateway Gateway
	Journal string // path of a file on a persistent disk; a lock file is created beside it

	Concurrency int           // concurrent sends; 0 = 4, at most 300
	Interval    time.Duration // minimum time between the starts of two sends; 0 = none
	Timeout     time.Duration // of one Send; 0 = 30 s
	Lease       time.Duration // of claims, extended until the task is reported; 10 s to 1 h in whole seconds; 0 = 1 min
	Grace       time.Duration // how long running sends may continue after the ctx of Run has ended; 0 = 20 s
	Log         *slog.Logger  // nil = slog.Default(); for its messages see LogConnected
}

const (
	defaultConcurrency = 4
	maxConcurrency     = 300 // tasksPerSend*maxConcurrency must be at most 1000, the limit of one claim
	defaultTimeout     = 30 * time.Second
	defaultLease       = time.Minute
	minLease           = 10 * time.Second
	maxLease           = time.Hour
	defaultGrace       = 20 * time.Second
	maxAppID           = 50
)

// complete sets the defaults and checks the fields. The error names every bad field.
func (cfg *Config) complete() error {
	var bad []error
	require := func(valid bool, message string) {
		if !valid {
			bad = append(bad, errors.New(message))
		}
	}
	require(cfg.Client != nil, "the client is missing")
	require(cfg.Gateway != nil, "the gateway is missing")
	require(cfg.Journal != "", "the journal's path is missing")
	require(strings.TrimSpace(cfg.AppID) != "" && utf8.RuneCountInString(cfg.AppID) <= maxAppID,
		fmt.Sprintf("the app id must have 1 to %d characters", maxAppID))

	cfg.Concurrency = cmp.Or(cfg.Concurrency, defaultConcurrency)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.Lease = cmp.Or(cfg.Lease, defaultLease)
	cfg.Grace = cmp.Or(cfg.Grace, defaultGrace)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	require(cfg.Concurrency > 0 && cfg.Concurrency <= maxConcurrency, fmt.Sprintf("the concurrency must be 1 to %d", maxConcurrency))
	require(cfg.Interval >= 0, "the interval must not be negative")
	require(cfg.Timeout > 0, "the timeout must not be negative")
	require(cfg.Grace > 0, "the grace period must not be negative")
	require(cfg.Lease >= minLease && cfg.Lease <= maxLease && cfg.Lease%time.Second == 0,
		fmt.Sprintf("the lease must be whole seconds from %s to %s", minLease, maxLease))
	return errors.Join(bad...)
}
