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

// demoSender prints the messages that it claims, and reports them as sent.
type demoSender struct {
	client  *api.Client
	out     io.Writer
	journal string // path
}

// run prints messages until ctx is done.
func (d demoSender) run(ctx context.Context) {
	if err := d.print(ctx); err != nil {
		fmt.Fprintf(d.out, "demo sender: %v\n", err)
	}
}

func (d demoSender) print(ctx context.Context) error {
	phone, err := sender.New(sender.Config{
		Client: d.client, AppID: demoApp, Gateway: sender.NewConsole(d.out), Journal: d.journal,
		Concurrency: 1, // in order
		Log:         slog.New(slog.NewTextHandler(d.out, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	return phone.Run(ctx)
}

// printable replaces control characters, which would move the cursor of the terminal.
func printable(s string) string { return text.Printable(s, ' ') }

// pause waits for d. It returns false if ctx is done before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
