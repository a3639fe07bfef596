package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// row is the result of one package's tests on one server. Subtests are not counted.
type row struct {
	postgres                string // version, such as 14.23
	pkg                     string
	passed, failed, skipped int
	took                    time.Duration
	ok                      bool
}

var header = fmt.Sprintf("%-9s %-19s %6s %6s %7s %7s", "postgres", "package", "passed", "failed", "skipped", "seconds")

func (r row) String() string {
	line := fmt.Sprintf("%-9s %-19s %6d %6d %7d %7.0f", r.postgres, r.pkg, r.passed, r.failed, r.skipped, r.took.Seconds())
	if !r.ok {
		line += "  FAIL"
	}
	return line
}

// test runs the tests of pkg on the server in bin and writes the output of failed tests
// to out.
func test(ctx context.Context, bin, pkg, pattern string, timeout time.Duration, out io.Writer) (row, error) {
	version, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return row{}, fmt.Errorf("%s/postgres does not run: %w", bin, err)
	}
	r := row{postgres: strings.TrimSpace(strings.TrimPrefix(string(version), "postgres (PostgreSQL)")), pkg: pkg}
	args := []string{"test", "-json", "-tags=slow", "-count=1", "-vet=off", "-parallel=8", "-timeout=" + timeout.String()}
	if pattern != "" {
		args = append(args, "-run", pattern)
	}
	run := exec.CommandContext(ctx, "go", append(args, pkg)...)
	run.Env = append(slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "DATABASE_URL=") }), "POSTGRES_BIN="+bin)
	run.Stderr = os.Stderr
	// The terminal sends Ctrl-C to go test, too, which then ends its servers.
	run.Cancel, run.WaitDelay = func() error { return nil }, time.Minute
	events, err := run.StdoutPipe()
	if err != nil {
		return r, err
	}
	startedAt := time.Now()
	if err := run.Start(); err != nil {
		return r, err
	}
	countErr := r.count(events, out)
	err = run.Wait()
	r.took, r.ok = time.Since(startedAt), err == nil
	if _, failed := errors.AsType[*exec.ExitError](err); failed {
		err = nil
	}
	return r, errors.Join(countErr, err)
}

// count counts the tests in the events of `go test -json`, and prints the output of failed ones.
func (r *row) count(events io.Reader, out io.Writer) error {
	output := map[[2]string]*strings.Builder{} // by package and test; "" = outside of a test
	for decoder := json.NewDecoder(events); ; {
		var e struct{ Action, Package, Test, Output string }
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the output of go test: %w", err)
		}
		name, _, isSubtest := strings.Cut(e.Test, "/")
		key := [2]string{e.Package, name}
		if output[key] == nil {
			output[key] = &strings.Builder{}
		}
		switch {
		case e.Action == "build-output":
			fmt.Fprint(out, e.Output)
			continue
		case e.Action == "output":
			output[key].WriteString(e.Output)
			continue
		case isSubtest:
			continue
		case e.Action == "fail":
			fmt.Fprintf(out, "--- Postgres %s, %s %s\n%s", r.postgres, e.Package, name, output[key])
		}
		if name == "" {
			continue
		}
		delete(output, key)
		switch e.Action {
		case "pass":
			r.passed++
		case "fail":
			r.failed++
		case "skip":
			r.skipped++
		}
	}
}
