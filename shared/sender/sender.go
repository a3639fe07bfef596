package sender

import (
	"context"
	"errors"
	"fmt"
)

// Sender sends the tasks of a Sendonce service through a Gateway.
type Sender struct {
	cfg Config
}

// New makes a sender. The error names every bad field of cfg.
func New(cfg Config) (*Sender, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Sender{cfg}, nil
}

// Run claims and sends tasks until ctx ends; then it returns nil. If the journal fails, Run returns an error, because
// nothing may be sent without a journal. Before Run returns, it waits for running sends and for the reports, at most
// the grace period and about 20 s more. While the service is unavailable, Run keeps trying.
func (s *Sender) Run(ctx context.Context) error {
	j, corrupt, err := openJournal(s.cfg.Journal, s.cfg.AppID)
	if err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	open := j.reports()
	if corrupt > 0 || len(open) > 0 {
		s.cfg.Log.WarnContext(ctx, "sender: the last run left reports or corrupt lines in the journal", "reports", len(open), "corrupt_lines", corrupt)
	}
	err = newRun(ctx, s.cfg, j).do(open)
	if err = errors.Join(err, j.close()); err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	return nil
}
