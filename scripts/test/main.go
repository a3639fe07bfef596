// Command test runs a command such as go test, whose packages share one Postgres and the
// binaries that they start.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// binaries are those that several packages start, or one that is among the last to end.
var binaries = []string{
	"github.com/sendonce/sendonce/functions/sendonce", "github.com/sendonce/sendonce/functions/framework",
	"github.com/sendonce/sendonce/scripts/sender", "github.com/sendonce/sendonce/scripts/example", "github.com/sendonce/sendonce/scripts/run",
	"github.com/nats-io/nats-server/v2",
}

func main() {
	// The command gets them, too, and ends first.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)
	bin, err := filepath.Abs(".sendonce/test")
	code := 1
	if err == nil {
		code, err = sandbox.RunShared(context.Background(), bin, binaries, os.Args[1:]...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
