package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// insertTaskSQL inserts one row into tasks, like the function submit, but no rows into other tables. As in submit, the ids
// grow with time, so that inserts write to the last pages of the index.
const insertTaskSQL = `
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
values ((lpad(to_hex((extract(epoch from clock_timestamp()) * 1000000)::bigint), 16, '0') || substr(gen_random_uuid()::text, 20))::uuid,
    0, 'default', 5, 3, 0, (13000000000 + random() * 999999999)::bigint, 'Your verification code is 285713');
`

// Baseline measures a rate with which the rate of a phase is compared.
type Baseline struct {
	Name string
	Rate func(context.Context) (float64, error) // rows per second; 0 = it could not be measured here
}

// Pgbench returns the baseline that PgbenchRate measures.
func (m *Machine) Pgbench(connections int, d time.Duration) Baseline {
	return Baseline{"pgbench", func(ctx context.Context) (float64, error) { return m.PgbenchRate(ctx, connections, d) }}
}

var tpsLine = regexp.MustCompile(`(?m)^tps = ([0-9.]+)`)

// PgbenchRate returns how many rows pgbench inserts per second into a copy of the migrated database, over the Unix socket,
// each row in its own transaction. It returns 0 if pgbench is not installed.
func (m *Machine) PgbenchRate(ctx context.Context, connections int, d time.Duration) (float64, error) {
	if m.pgbench == "" {
		return 0, nil
	}
	clients := min(connections, m.maxConnections-10) // 10 are left for superusers and for the Sendonce process that is measured
	limit := []string{"-T", strconv.Itoa(int(math.Ceil(d.Seconds())))}
	if d < time.Second/2 {
		limit = []string{"-t", "10"} // transactions per client; -T accepts only whole seconds
	}
	cmd := exec.CommandContext(ctx, m.pgbench, append(limit, "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", strconv.Itoa(min(2, clients)),
		"-f", "-", m.Postgres.URL(baselineDatabase))...)
	cmd.Stdin = strings.NewReader(insertTaskSQL)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, errors.Join(fmt.Errorf("pgbench: %w\n%s", err, out), ctx.Err())
	}
	match := tpsLine.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("no tps in the output of pgbench:\n%s", out)
	}
	return strconv.ParseFloat(string(match[1]), 64)
}
