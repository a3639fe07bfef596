package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sender"
)

// runDemoSender claims SMS tasks, prints their messages and reports them as sent, until ctx is done or an error ends the
// demo sender; then runDemoSender prints the error.
func runDemoSender(ctx context.Context, s settings, out io.Writer) {
	worker, err := sender.New(sender.Config{
		Client: api.NewClient(s.url(), s.username, s.password), AppID: "demo-sender", Gateway: sender.NewConsole(out),
		Journal:     filepath.Join(s.home, "demo-sender.journal"),
		Concurrency: 1, // prints messages in order
		Log:         slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err == nil {
		err = worker.Run(ctx)
	}
	if err != nil {
		fmt.Fprintf(out, "demo sender: %v\n", err)
	}
}
