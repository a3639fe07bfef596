package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

const (
	costsFile   = "testdata/costs.txt"
	updateCosts = "go test ./functions/e2e -run TestHotCallsCostNoMoreThanBefore -update"
)

var update = flag.Bool("update", false, "rewrite "+costsFile)

// cost is what one task, message or call costs. These numbers are counts, not times, so they are nearly the same on
// every machine.
type cost struct{ statements, wal, blocks, allocations float64 }

// work is the work whose cost is one row of costs.txt.
type work struct {
	name    string
	units   int    // how many tasks, messages or calls one call of do makes
	prepare func() // runs before each round, and is not measured; may be nil
	do      func()
}

// newCostCluster starts all functions on a Postgres that counts the costs of statements.
func newCostCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	c := cluster.New(t)
	c.EnsureStreams()
	c.StartWithoutTrigger()
	if !strings.Contains(c.Admin.QueryText(`show shared_preload_libraries`), "pg_stat_statements") {
		t.Skip("this Postgres does not load pg_stat_statements")
	}
	c.Admin.Exec(`create extension pg_stat_statements`)
	return c
}

// costPasses is the highest number of passes over all work; the lowest cost of all passes counts. On a busy machine,
// background work may add to all rounds of one pass. There is no further pass when no cost exceeds its limit.
const costPasses = 3

// A hot call may cost at most a tenth more than in costs.txt. With many finished tasks, a call may need at most 1.5
// times the blocks of costs.txt, and two more, because some indexes have one more level. The test inserts 20,000
// finished tasks, and in `make lists` a million (SENDONCE_TASK_ROWS).
func TestHotCallsCostNoMoreThanBefore(t *testing.T) {
	t.Parallel()
	c := newCostCluster(t)
	all, got := hotWork(c), map[string]cost{}
	content, err := os.ReadFile(costsFile)
	require.NoError(t, err)
	want := parseCosts(t, string(content))
	exceeds := func(w work) bool { return got[w.name].exceeds(want[w.name], w.units) }
	for pass := range costPasses {
		for _, w := range all {
			m := w.measure(c)
			if pass > 0 {
				m = m.lower(got[w.name])
			}
			got[w.name] = m
		}
		if *update || !slices.ContainsFunc(all, exceeds) {
			break
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%-24s %10s %10s %10s %12s\n", "each", "statements", "WAL bytes", "blocks", "allocations")
	for _, w := range all {
		m := got[w.name]
		fmt.Fprintf(&table, "%-24s %10.3f %10.0f %10.1f %12.0f\n", w.name, m.statements, m.wal, m.blocks, m.allocations)
	}
	if *update {
		require.NoError(t, os.WriteFile(costsFile, []byte(table.String()), 0o644))
		return
	}
	require.Len(t, want, len(got))
	if slices.ContainsFunc(all, exceeds) {
		sandbox.RequireGolden(t, costsFile, string(content), table.String(), updateCosts)
	}

	rows := numberFrom("SENDONCE_TASK_ROWS", 20_000)
	require.NoError(t, load.FillTasks(t.Context(), c.Admin.Owner, rows, io.Discard))
	c.Admin.Exec(`vacuum analyze task_live`) // the table has the dead rows of the measurements above
	for _, w := range all {
		large := w.measure(c)
		t.Logf("%-24s %6.1f blocks without finished tasks (%.1f in costs.txt), %6.1f with %d", w.name, got[w.name].blocks, want[w.name].blocks, large.blocks, rows)
		require.Less(t, large.blocks, 1.5*want[w.name].blocks+2, w.name)
	}
}

// idleAllocations is how many allocations an idle process with all functions makes in a second. measure subtracts them,
// because a busy machine may need twenty times as long for a round.
const idleAllocations = 1500

// measure returns the lowest cost of several rounds. The first round also prepares statements, opens connections and
// fills caches, and background work may add to any round.
func (w work) measure(c *cluster.Cluster) (lowest cost) {
	for round := range 3 {
		if w.prepare != nil {
			w.prepare()
		}
		before, began := costOf(c), time.Now()
		w.do()
		idle := idleAllocations * time.Since(began).Seconds()
		after, n := costOf(c), float64(w.units)
		m := cost{
			(after.statements - before.statements) / n, (after.wal - before.wal) / n,
			(after.blocks - before.blocks) / n, (after.allocations - before.allocations - idle) / n,
		}
		if round > 0 {
			m = m.lower(lowest)
		}
		lowest = m
	}
	return lowest
}

// lower returns the lower value of each number.
func (m cost) lower(other cost) cost {
	return cost{min(m.statements, other.statements), min(m.wal, other.wal), min(m.blocks, other.blocks), min(m.allocations, other.allocations)}
}

// exceeds reports whether a cost is more than a tenth above a limit. It allows for background work in each round, such
// as four statements with 400 allocations.
func (m cost) exceeds(limit cost, units int) bool {
	return m.statements > 1.1*limit.statements+4/float64(units) || m.wal > 1.1*limit.wal+1 || m.blocks > 1.1*limit.blocks+0.5 ||
		m.allocations > 1.1*limit.allocations+2+400/float64(units)
}

// hotWork returns the work in the order in which it must run: tasks are submitted, then claimed and reported.
func hotWork(c *cluster.Cluster) []work {
	ctx, t := c.T.Context(), c.T
	var claimed []api.ClaimedTask
	claim := func(limit int) {
		noWait := 0
		tasks, err := c.Client.Claim(ctx, api.ClaimRequest{AppID: "app", Limit: &limit, Wait: &noWait})
		require.NoError(t, err)
		claimed = append(claimed, tasks...)
	}
	report := func(n int) {
		reports, succeeded := make([]api.ReportRequest, n), 2
		for i, task := range claimed[:n] {
			reports[i] = api.ReportRequest{TaskID: task.TaskID, AppID: "app", ClaimID: task.ClaimID, Status: &succeeded}
		}
		claimed = claimed[n:]
		if n == 1 {
			_, err := c.Client.Report(ctx, reports[0])
			require.NoError(t, err)
			return
		}
		_, err := c.Client.ReportBatch(ctx, "app", reports)
		require.NoError(t, err)
	}
	keyed := func() api.SendRequest {
		return api.SendRequest{PhoneNumber: "13800138000", Content: "Your code is 4711", IdempotencyKey: api.NewKey(), Metadata: json.RawMessage(`{"order":4711}`)}
	}
	times := func(n int, do func()) func() {
		return func() {
			for range n {
				do()
			}
		}
	}
	return []work{
		{"task, submitted alone", 50, nil, times(50, func() {
			_, err := c.Client.Send(ctx, keyed())
			require.NoError(t, err)
		})},
		{"task, submitted in 500", 500, nil, func() {
			batch := make([]api.SendRequest, 500)
			for i := range batch {
				batch[i] = keyed()
			}
			_, err := c.Client.SendBatch(ctx, batch)
			require.NoError(t, err)
		}},
		{"task, claimed alone", 50, nil, times(50, func() { claim(1) })},
		{"task, claimed in 100", 500, nil, times(5, func() { claim(100) })},
		{"task, reported alone", 50, nil, times(50, func() { report(1) })},
		{"task, reported in 100", 500, nil, times(5, func() { report(100) })},
		// Without the vacuum, the dead rows of the claims above cost up to twenty blocks more.
		{"claim of nothing", 50, func() { c.Admin.Exec(`vacuum task_live`) }, times(50, func() { claim(1) })},
		{"message, submitted alone", 50, nil, times(50, func() { c.Save("user:ann") })},
		{"message, sent by relay", 50, times(50, func() { c.Save("user:ann") }), func() {
			before := c.MessagesIn("USERS")
			require.Equal(t, 204, c.Admin.Tick("relay").Status)
			require.GreaterOrEqual(t, c.MessagesIn("USERS"), before+50)
		}},
	}
}

// costOf returns the sum of all costs so far: those of all statements in the database that the owner did not run, and
// the allocations of the process.
func costOf(c *cluster.Cluster) (sum cost) {
	require.NoError(c.T, c.Admin.Owner.QueryRow(c.T.Context(), `
select coalesce(sum(calls), 0), coalesce(sum(wal_bytes), 0), coalesce(sum(shared_blks_hit + shared_blks_read), 0)
from pg_stat_statements
where dbid = (select oid from pg_database where datname = current_database()) and userid <> current_user::regrole`).
		Scan(&sum.statements, &sum.wal, &sum.blocks))
	sum.allocations = sampleOf(c.T, cluster.Metrics(c.T, c.Admin.URL), "go_heap_allocations_total")
	require.Positive(c.T, sum.allocations)
	return sum
}

// parseCosts reads a table in the form of costs.txt.
func parseCosts(t *testing.T, table string) map[string]cost {
	t.Helper()
	costs := map[string]cost{}
	for row := range strings.Lines(table) {
		name, numbers, ok := strings.Cut(row, "  ")
		var c cost
		if _, err := fmt.Sscan(numbers, &c.statements, &c.wal, &c.blocks, &c.allocations); ok && err == nil {
			costs[name] = c
		}
	}
	return costs
}
