package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/sandbox"
)

const riverDatabase = "river"

// River is a process of scripts/bench/river. The process measures the job queue River, which is compared with Sendonce.
type River struct {
	process *sandbox.Process
	address string
	conn    *pgx.Conn
	jobs    int // number of jobs inserted so far
}

// StartRiver builds scripts/bench/river and starts it with its own database. If its modules cannot be
// downloaded, StartRiver writes this to progress and returns nil without an error.
func (m *Machine) StartRiver(ctx context.Context, progress io.Writer) (r *River, err error) {
	fmt.Fprintln(progress, "building River")
	list := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "github.com/sendonce/sendonce/scripts/bench")
	dir, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("find the module of River: %w", err)
	}
	source := filepath.Join(strings.TrimSpace(string(dir)), "river")
	downloadCtx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if out, err := exec.CommandContext(downloadCtx, "go", "-C", source, "mod", "download").CombinedOutput(); err != nil {
		fmt.Fprintf(progress, "River is left out: %v\n%s", err, out)
		return nil, ctx.Err()
	}
	binary := filepath.Join(m.dir, "river")
	build := exec.CommandContext(ctx, "go", "-C", source, "build", "-o", binary, "-trimpath", ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build River: %w\n%s", err, out)
	}
	if _, err := m.Conn.Exec(ctx, "create database "+riverDatabase); err != nil {
		return nil, err
	}
	r = &River{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop(ctx))
		}
	}()
	url := m.Postgres.URL(riverDatabase)
	if r.conn, err = pgx.Connect(ctx, url); err != nil {
		return r, err
	}
	r.process, err = sandbox.Start(sandbox.Command{Path: binary, Env: []string{"PATH=" + os.Getenv("PATH"), "DATABASE_URL=" + url}})
	if err != nil {
		return r, err
	}
	readyCtx, cancelReady := context.WithTimeout(ctx, readyTimeout)
	defer cancelReady()
	err = r.process.WaitFor(readyCtx, "}\n") // a line of JSON with the address
	r.address = JSONString([]byte(r.process.Output()), "address")
	return r, err
}

// Stop ends the process and closes the connection.
func (r *River) Stop(ctx context.Context) error {
	var errs []error
	if r.process != nil {
		errs = append(errs, terminate(r.process))
	}
	if r.conn != nil {
		errs = append(errs, r.conn.Close(context.WithoutCancel(ctx)))
	}
	return errors.Join(errs...)
}

// Baseline returns a list of one baseline, which is measured by a request to a path of River's process:
//
//	insert       32 goroutines insert jobs for d, each job with its own statement
//	insert-many  4 goroutines insert jobs for d, 500 in each COPY
//	work         jobs are worked until none is left; d is ignored
//
// If r is nil, the list is empty.
func (r *River) Baseline(name, path string, d time.Duration) []Baseline {
	if r == nil {
		return nil
	}
	return []Baseline{{name, func(ctx context.Context) (float64, error) {
		rows, seconds, err := r.measure(ctx, path, d)
		if err != nil || rows == 0 {
			return 0, err
		}
		if path != "work" {
			r.jobs += rows
		}
		return float64(rows) / seconds, nil
	}}}
}

func (r *River) measure(ctx context.Context, path string, d time.Duration) (rows int, seconds float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, d+waitTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://%s/%s?for=%s", r.address, path, d), nil)
	if err != nil {
		return 0, 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, 0, err
	}
	if response.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("%s %s", response.Status, body)
	}
	var reply struct {
		Rows    int
		Seconds float64
	}
	err = json.Unmarshal(body, &reply)
	return reply.Rows, reply.Seconds, err
}

// Check checks that the database has each inserted job and no others, and that each was worked exactly once. It returns a
// line for the report.
func (r *River) Check(ctx context.Context) (string, error) {
	const sql = `select count(*), count(*) filter (where state = 'completed' and attempt = 1) from river_job`
	var jobs, worked int
	if err := r.conn.QueryRow(ctx, sql).Scan(&jobs, &worked); err != nil {
		return "", fmt.Errorf("count the jobs of River: %w", err)
	}
	if jobs != r.jobs || worked != jobs {
		return "", fmt.Errorf("River inserted %d jobs; the database has %d, of which %d were worked once", r.jobs, jobs, worked)
	}
	return fmt.Sprintf("Checked: %d jobs of River, each worked once.", jobs), nil
}
