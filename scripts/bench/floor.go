package main

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

	"github.com/jackc/pgx/v5"
)

// floorSQL inserts one row like those of submit. Its ids grow with time, as
// those of submit do, so that both touch the same few pages of the index.
const floorSQL = `
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
values ((lpad(to_hex((extract(epoch from clock_timestamp()) * 1000000)::bigint), 16, '0') || substr(gen_random_uuid()::text, 20))::uuid,
    0, 'default', 5, 3, 0, (13000000000 + random() * 999999999)::bigint, 'Your verification code is 285713');
`

// findPgbench looks beside the server's binaries, then on the PATH; "" when
// there is none.
func findPgbench(ctx context.Context, conn *pgx.Conn) (string, error) {
	var dir string
	if err := conn.QueryRow(ctx, "select setting from pg_config where name = 'BINDIR'").Scan(&dir); err != nil {
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

// floor measures what Postgres alone does with one insert per transaction.
func floor(ctx context.Context, pgbench, database string, clients int, d time.Duration) (result, error) {
	seconds := strconv.Itoa(int(math.Ceil(d.Seconds())))
	cmd := exec.CommandContext(ctx, pgbench, "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", strconv.Itoa(min(2, clients)),
		"-T", seconds, "-f", "-", database)
	cmd.Stdin = strings.NewReader(floorSQL)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return result{}, errors.Join(fmt.Errorf("pgbench: %w\n%s", err, out), ctx.Err())
	}
	match := pgbenchRate.FindSubmatch(out)
	if match == nil {
		return result{}, fmt.Errorf("pgbench gave no rate:\n%s", out)
	}
	rate, err := strconv.ParseFloat(string(match[1]), 64)
	return result{name: "pgbench, an insert each", connections: clients, rate: rate}, err
}
