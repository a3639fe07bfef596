package sender

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/api"
)

// Config says what a Sender does and with what. Client, AppID, Gateway and
// Journal are needed.
type Config struct {
	Client  *api.Client
	AppID   string // the app's name, 1 to 50 characters
	Queue   string // where to claim from; "" = the server's default queue
	Gateway Gateway
	Journal string // a file on a disk that outlives the process; beside it a lock is kept

	Concurrency int           // sends at once; 0 = 4, at most 300
	Interval    time.Duration // between the starts of two sends, at least; 0 = none
	Timeout     time.Duration // of one Send; 0 = 30 s
	Lease       time.Duration // how long a claim outlives its sender, 10 s to 1 h in whole seconds; 0 = 1 min
	Grace       time.Duration // that sends under way have when Run is asked to stop; 0 = 20 s
	Log         *slog.Logger  // nil = slog.Default(); its messages are LogConnected and others
}

const (
	defaultConcurrency = 4
	mostConcurrency    = 300 // three tasks each, and a claim gives at most 1000
	defaultTimeout     = 30 * time.Second
	defaultLease       = time.Minute
	shortestLease      = 10 * time.Second
	longestLease       = time.Hour
	defaultGrace       = 20 * time.Second
	mostAppID          = 50
)

// Sender carries tasks from a Sendonce service to a Gateway.
type Sender struct {
	cfg Config
}

// New makes a sender. The error names everything that is wrong with cfg.
func New(cfg Config) (*Sender, error) {
	var bad []error
	want := func(is bool, message string) {
		if !is {
			bad = append(bad, errors.New(message))
		}
	}
	want(cfg.Client != nil, "the client is missing")
	want(cfg.Gateway != nil, "the gateway is missing")
	want(cfg.Journal != "", "the journal's path is missing")
	want(strings.TrimSpace(cfg.AppID) != "" && utf8.RuneCountInString(cfg.AppID) <= mostAppID,
		fmt.Sprintf("the app id must have 1 to %d characters", mostAppID))

	cfg.Concurrency = cmp.Or(cfg.Concurrency, defaultConcurrency)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.Lease = cmp.Or(cfg.Lease, defaultLease)
	cfg.Grace = cmp.Or(cfg.Grace, defaultGrace)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	want(cfg.Concurrency > 0 && cfg.Concurrency <= mostConcurrency, fmt.Sprintf("the concurrency must be 1 to %d", mostConcurrency))
	want(cfg.Interval >= 0, "the interval must not be negative")
	want(cfg.Timeout > 0, "the timeout must not be negative")
	want(cfg.Grace > 0, "the grace period must not be negative")
	want(cfg.Lease >= shortestLease && cfg.Lease <= longestLease && cfg.Lease%time.Second == 0,
		fmt.Sprintf("the lease must be whole seconds from %s to %s", shortestLease, longestLease))
	if len(bad) > 0 {
		return nil, errors.Join(bad...)
	}
	return &Sender{cfg}, nil
}

// Run works until ctx ends, which is no error, or the journal fails, which is:
// without it nothing may be sent. It returns when all that it began is settled
// or left in the journal: about the grace period and 20 s later, at the latest.
// While the service is away it tries again for ever.
func (s *Sender) Run(ctx context.Context) error {
	j, spoilt, err := openJournal(s.cfg.Journal, s.cfg.AppID)
	if err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	left := j.left()
	if spoilt > 0 || len(left) > 0 {
		s.cfg.Log.WarnContext(ctx, "sender: the last run left reports to make", "reports", len(left), "spoilt_lines", spoilt)
	}
	err = newRun(ctx, s.cfg, j).work(left)
	if err = errors.Join(err, j.close()); err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	return nil
}
