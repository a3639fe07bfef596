package maintenance_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// monthAgo returns the first day of the month n months ago.
func monthAgo(n int) time.Time {
	now := time.Now().UTC()
	return time.Date(now.Year(), now.Month()-time.Month(n), 1, 0, 0, 0, 0, time.UTC)
}

// createOldLogs creates the log partitions of so many past months, with a row in each partition of receive_logs.
func createOldLogs(t *testing.T, db *storetest.DB, months int) {
	t.Helper()
	for n := 1; n <= months; n++ {
		from, to := monthAgo(n), monthAgo(n-1)
		for _, parent := range []string{"receive_logs", "send_logs", "report_logs"} {
			db.Exec(t, fmt.Sprintf(`create table %[1]s_%[2]s partition of %[1]s for values from ('%[3]s') to ('%[4]s')`,
				parent, from.Format("200601"), from.Format(time.RFC3339), to.Format(time.RFC3339)))
		}
		db.Exec(t, `insert into receive_logs (caller_id, status_code, created_at) values (0, 200, $1)`, to.Add(-time.Second))
	}
}

// dropLogs runs the archive and returns the log partitions that it dropped, or would drop without DryRun.
func dropLogs(t *testing.T, db *storetest.DB, run maintenance.ArchiveRun) (partitions []string) {
	t.Helper()
	for step, err := range db.Maintenance.Archive(t.Context(), run) {
		require.NoError(t, err)
		require.False(t, step.InUse, step.Partition)
		if step.Partition != "" {
			partitions = append(partitions, step.Partition)
		}
	}
	return partitions
}

func TestLogMonthIsDroppedWhenItsEndIsOld(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(0, 60))
	createOldLogs(t, db, 4)
	writeAndReadLogs := func() {
		s := storetest.Submission()
		db.MustSubmit(t, s)
		db.Claim(t)
		require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentOK}).Verdict)
		_, _, err := db.Tasks.Timeline(t.Context(), s.ID, tasks.TimelineCursor{}, 10)
		require.NoError(t, err)
	}
	for range 3 {
		writeAndReadLogs() // also prepares the statements, before a partition is dropped
	}
	var want []string
	for n := 4; n >= 1; n-- {
		if monthAgo(n - 1).After(time.Now().AddDate(0, 0, -60)) {
			continue
		}
		for _, parent := range []string{"receive_logs", "report_logs", "send_logs"} {
			want = append(want, parent+"_"+monthAgo(n).Format("200601"))
		}
	}
	require.NotEmpty(t, want)
	require.Equal(t, want, dropLogs(t, db, maintenance.ArchiveRun{DryRun: true}))
	require.Equal(t, 4, db.Count(t, `select count(*) from receive_logs where caller_id = 0 and task_id is null`))
	require.Equal(t, want, dropLogs(t, db, maintenance.ArchiveRun{}))
	require.Zero(t, db.Count(t, `select count(*) from pg_class where relname = any($1)`, want))
	require.Equal(t, 4-len(want)/3, db.Count(t, `select count(*) from receive_logs where task_id is null`))
	writeAndReadLogs()

	require.Len(t, dropLogs(t, db, maintenance.ArchiveRun{Before: monthAgo(1)}), 9-len(want), "a row one second older than Before is dropped")
	require.Equal(t, 1, db.Count(t, `select count(*) from receive_logs where task_id is null`))
	lastMonth := monthAgo(1).Format("200601") // on the first day of a month, its last row is less than 24 hours old
	require.Subset(t, []string{"receive_logs_" + lastMonth, "report_logs_" + lastMonth, "send_logs_" + lastMonth},
		dropLogs(t, db, maintenance.ArchiveRun{Before: time.Now().AddDate(9, 0, 0)}), "this month stays")
	writeAndReadLogs()
}

func TestPartitionInUseIsSkippedWithoutBlocking(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(0, 30))
	createOldLogs(t, db, 3)
	release := db.HoldLock(t, `select count(*) from receive_logs`)

	stop, done := make(chan struct{}), make(chan time.Duration)
	go func() {
		var worst time.Duration
		for {
			select {
			case <-stop:
				done <- worst
				return
			default:
			}
			start := time.Now()
			db.Tasks.Submit([]*tasks.Submission{storetest.Submission()})
			worst = max(worst, time.Since(start))
		}
	}()
	var inUse, dropped []string
	for step, err := range db.Maintenance.Archive(t.Context(), maintenance.ArchiveRun{}) {
		require.NoError(t, err)
		switch {
		case step.InUse:
			inUse = append(inUse, step.Partition)
		case step.Partition != "":
			dropped = append(dropped, step.Partition)
		}
	}
	close(stop)
	worst := <-done
	t.Logf("the slowest submission took %v", worst)
	require.Less(t, worst, 1500*time.Millisecond, "no submission waits until the lock timeout of its role, 2 s")
	require.NotEmpty(t, inUse)
	require.Len(t, dropped, 2*len(inUse), "the other logs are not in use")
	release()
	require.Equal(t, inUse, dropLogs(t, db, maintenance.ArchiveRun{}))
}

func TestRetentionRoleDropsOnlyOldLogs(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	createOldLogs(t, db, 3)
	for _, name := range []string{"tasks", "receive_logs", "receive_logs_" + monthAgo(0).Format("200601"), "receive_logs_" + monthAgo(1).Format("200601"), "no such"} {
		var dropped bool
		require.NoError(t, db.Retention.QueryRow(t.Context(), maintenance.DropPartitionSQL, name, monthAgo(0).AddDate(0, 0, -1)).Scan(&dropped))
		require.False(t, dropped, name)
	}
	_, err := db.Retention.Exec(t.Context(), maintenance.DropPartitionSQL, "receive_logs_"+monthAgo(0).Format("200601"), time.Now().AddDate(1, 0, 0))
	require.ErrorContains(t, err, "logs of the last day are not dropped")
}
