package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sender"
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
