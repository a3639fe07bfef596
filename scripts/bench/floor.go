package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// insertSQL inserts one row like those of submit. Its ids grow with time, as
// those of submit do, so that both write to the same few pages of the index.
const insertSQL = `
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
values ((lpad(to_hex((extract(epoch from clock_timestamp()) * 1000000)::bigint), 16, '0') || substr(gen_random_uuid()::text, 20))::uuid,
    0, 'default', 5, 3, 0, (13000000000 + random() * 999999999)::bigint, 'Your verification code is 285713');
`

// pgbenchFloor is the name of Floor's figure in tables.
const pgbenchFloor = "pgbench"

// findPgbench searches the directory of the server's binaries, then the PATH. It
// returns "" if there is none.
func (m *Machine) findPgbench(ctx context.Context) (string, error) {
	var dir string
	if err := m.Conn.QueryRow(ctx, "select setting from pg_config where name = 'BINDIR'").Scan(&dir); err != nil {
		return "", fmt.Errorf("find pgbench: %w", err)
	}
	for _, name := range []string{filepath.Join(dir, "pgbench"), "pgbench"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", nil
}

var pgbenchRate = regexp.MustCompile(`(?m)^tps = ([0-9.]+)`)

// Floor is how many inserts of one row, each a transaction, pgbench makes per second
// on a copy of the migrated database, over the Unix socket. It returns 0 where there is
// no pgbench.
func (m *Machine) Floor(ctx context.Context, connections int, d time.Duration) (float64, error) {
	if m.pgbench == "" {
		return 0, nil
	}
	clients := min(connections, m.maxConnections-10) // which superusers, autovacuum and the server under test use
	limit := []string{"-T", strconv.Itoa(int(math.Ceil(d.Seconds())))}
	if d < time.Second {
		limit = []string{"-t", "10"} // transactions of each client; -T takes whole seconds
	}
	cmd := exec.CommandContext(ctx, m.pgbench, append(limit, "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", strconv.Itoa(min(2, clients)),
		"-f", "-", m.Postgres.URL(floorDatabase))...)
	cmd.Stdin = strings.NewReader(insertSQL)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, errors.Join(fmt.Errorf("pgbench: %w\n%s", err, out), ctx.Err())
	}
	match := pgbenchRate.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("pgbench printed no rate:\n%s", out)
	}
	return strconv.ParseFloat(string(match[1]), 64)
}

// Beside measures the floor for d, then the phase, and sets their ratio.
func (m *Machine) Beside(ctx context.Context, d time.Duration, p Phase, address string) (Result, error) {
	floor, err := m.Floor(ctx, p.Connections, d)
	if err != nil {
		return Result{}, err
	}
	r, err := p.Run(ctx, address)
	r.SetFloor(pgbenchFloor, floor)
	return r, err
}

// SetFloor sets the ratio of the rate to that of a floor; 0 = not measured.
func (r *Result) SetFloor(name string, rate float64) {
	r.Floor = name
	if rate > 0 {
		r.Ratio = r.Rate / rate
	}
}
