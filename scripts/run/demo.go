package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sender"
	"github.com/sendonce/sendonce/shared/text"
)

const demoApp = "demo-sender"

// demoSender claims SMS tasks, prints their messages and reports them as sent.
type demoSender struct {
	client  *api.Client
	out     io.Writer
	journal string // path of the sender's journal
}

// run works until ctx is done. It prints an error that ends it earlier.
func (d demoSender) run(ctx context.Context) {
	if err := d.runSender(ctx); err != nil {
		fmt.Fprintf(d.out, "demo sender: %v\n", err)
	}
}

func (d demoSender) runSender(ctx context.Context) error {
	s, err := sender.New(sender.Config{
		Client: d.client, AppID: demoApp, Gateway: sender.NewConsole(d.out), Journal: d.journal,
		Concurrency: 1, // prints messages in order
		Log:         slog.New(slog.NewTextHandler(d.out, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// printable replaces control characters, which could move the terminal's cursor, with spaces.
func printable(s string) string { return text.Printable(s, ' ') }

// pause waits for d. It returns false if ctx is done first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
