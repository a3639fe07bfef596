// Command sender claims messages from a Sendonce service and passes them to a gateway, which
// prints them, calls a provider over HTTP, or fails on demand. It may be killed at any time:
// the next process reads from the journal which sends were started.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

const exitBadFlags = 2

func main() {
	worker, err := newSender(os.Args[1:], os.LookupEnv, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage())
		return
	case err != nil:
		for line := range strings.Lines(err.Error()) {
			fmt.Fprint(os.Stderr, "sender: ", line)
		}
		fmt.Fprintln(os.Stderr, "\nsender: -h prints all flags")
		os.Exit(exitBadFlags)
	}
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// A second Ctrl-C ends the process at once: it does not wait for sends in progress.
	context.AfterFunc(ctx, release)
	if err := worker.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
