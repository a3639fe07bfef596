// Command test builds binaries, starts one Postgres unless DATABASE_URL is set, and runs the command
// in its arguments, such as go test ./…: all test packages share the binaries and the Postgres.
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

// binaries are built before the tests. Each is started by the tests of several packages, or by the tests of a package that
// is among the last to end.
var binaries = []string{
	"github.com/sendonce/sendonce/functions/sendonce", "github.com/sendonce/sendonce/functions/framework",
	"github.com/sendonce/sendonce/scripts/sender", "github.com/sendonce/sendonce/scripts/example", "github.com/sendonce/sendonce/scripts/run",
	"github.com/nats-io/nats-server/v2",
}

func main() {
	// The command also receives these signals. This process ignores them and ends after the command.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)
	bin, err := filepath.Abs(".sendonce/test")
	code := 1
	if err == nil {
		code, err = sandbox.RunShared(context.Background(), bin, binaries, os.Args[1:]...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
