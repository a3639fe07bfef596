package maintenance_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// createdDaysAgo gives a submission an id that was created so many days ago: an id begins with the time of its creation.
func createdDaysAgo(days int) func(*tasks.Submission) {
	return func(s *tasks.Submission) {
		floor := task.IDFloor(time.Now().AddDate(0, 0, -days))
		copy(s.ID[:8], floor[:8])
	}
}

// setEndedDaysAgo sets the time of the result of every final task to so many days ago, and moves sent_at as far back.
func setEndedDaysAgo(t *testing.T, db *storetest.DB, days int) {
	t.Helper()
	db.Exec(t, `update task_done set reported_at = now() - make_interval(days => $1), sent_at = sent_at - make_interval(days => $1)`, days)
}

// taskCounts returns the number of rows of tasks, task_live, task_done and archived_tasks.
func taskCounts(t *testing.T, db *storetest.DB) string {
	t.Helper()
	return fmt.Sprint(db.Count(t, `select count(*) from tasks`), db.Count(t, `select count(*) from task_live`),
		db.Count(t, `select count(*) from task_done`), db.Count(t, `select count(*) from archived_tasks`))
}

func TestArchivedTaskIsFoundByIDAndKey(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	s := storetest.Submission(storetest.Keyed("k", "body"), createdDaysAgo(91), func(s *tasks.Submission) {
		s.Source, s.CallbackURL, s.Metadata, s.Queue = "shop", "https://a.example/cb", []byte(`{"a": 1}`), "q"
		s.ExpiresAt = time.Now().Add(time.Hour)
	})
	db.MustSubmit(t, s)
	c := db.Claim(t, func(r *tasks.ClaimRequest) { r.Queue = "q" })[0]
	report := task.Report{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentFailed, Message: "no such number", ErrorCode: "E7"}
	require.Equal(t, task.Applied, db.MustReport(t, report).Verdict)
	setEndedDaysAgo(t, db, 91)
	before, statistics := db.MustTask(t, s.ID), db.MustStatistics(t)

	require.Equal(t, 1, db.MustArchive(t, maintenance.ArchiveRun{})["tasks"])
	require.Equal(t, "0 0 0 1", taskCounts(t, db))
	require.Zero(t, db.Count(t, `select count(*) from sms_tasks`), "the view shows the main tables only")
	after := db.MustTask(t, s.ID)
	require.True(t, after.Archived)
	after.Archived = false
	require.Equal(t, before, after, "the archive keeps all fields")
	byKey, err := db.Tasks.ByKey(t.Context(), *s.Key)
	require.NoError(t, err)
	require.True(t, byKey.Archived)
	require.Equal(t, statistics, db.MustStatistics(t))

	again := storetest.Submission(storetest.Keyed("k", "body"))
	out := db.MustSubmit(t, again)[0]
	require.Equal(t, tasks.Submitted{ID: s.ID, State: task.Failed, Replayed: true, Archived: true, Text: "body"}, out)
	other := db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "another body")))[0]
	require.Equal(t, task.CodeKeyReused, other.Refused.Code)
	live := storetest.Submission(storetest.Keyed("l", "body"))
	db.MustSubmit(t, live)
	outs := db.MustSubmit(t, storetest.Submission(storetest.Keyed("l", "body")), storetest.Submission(storetest.Keyed("k", "body")), storetest.Submission(storetest.Keyed("k", "body")))
	require.Equal(t, []bool{false, true, true}, []bool{outs[0].Archived, outs[1].Archived, outs[2].Archived})
	require.Equal(t, []task.ID{live.ID, s.ID, s.ID}, []task.ID{outs[0].ID, outs[1].ID, outs[2].ID})
	require.Equal(t, 1, db.Count(t, `select count(*) from tasks`), "no repeat made a task")
}

func TestKeyOfTaskDeletedFromArchiveStaysTaken(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	s := storetest.Submission(storetest.Keyed("k", "body"), createdDaysAgo(91))
	db.MustSubmit(t, s)
	db.Claim(t)
	require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentOK}).Verdict)
	setEndedDaysAgo(t, db, 91)
	require.Equal(t, 1, db.MustArchive(t, maintenance.ArchiveRun{})["tasks"])
	db.Exec(t, `delete from archived_tasks`) // as an operator may, after an export

	outs := db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "body")), storetest.Submission(storetest.Keyed("other", "body")))
	require.Equal(t, task.CodeKeyReused, outs[0].Refused.Code)
	require.Contains(t, outs[0].Refused.Message, "deleted from the archive")
	require.Nil(t, outs[1].Refused)
	require.Equal(t, 1, db.Count(t, `select count(*) from tasks`), "the repeat made no task")
}

func TestRetriedSubmissionFindsArchivedTask(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	plain, withKey := storetest.Submission(createdDaysAgo(100)), storetest.Submission(storetest.Keyed("k", "hello"), createdDaysAgo(100))
	for _, s := range []*tasks.Submission{plain, withKey} {
		db.MustSubmit(t, s)
		db.Claim(t)
		require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentOK}).Verdict)
	}
	setEndedDaysAgo(t, db, 99)
	require.Equal(t, 2, db.MustArchive(t, maintenance.ArchiveRun{})["tasks"])
	for _, out := range db.MustSubmit(t, plain, withKey) { // as if the response to their COMMIT had been lost
		require.Equal(t, task.Succeeded, out.State)
		require.True(t, out.Archived)
		require.False(t, out.Replayed, "this is the first call, tried again")
	}
	require.Equal(t, "0 0 0 2", taskCounts(t, db), "the retry made no second task")
}

func TestOnlyOldFinalTasksAreArchived(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	pending, processing, held := storetest.Submission(createdDaysAgo(200)), storetest.Submission(createdDaysAgo(200)), storetest.Submission(createdDaysAgo(200), func(s *tasks.Submission) { s.OnUnknown = task.Hold })
	scheduled := storetest.Submission(createdDaysAgo(200), func(s *tasks.Submission) { s.SendAt = time.Now().Add(time.Hour) })
	old, recent, young := storetest.Submission(createdDaysAgo(200)), storetest.Submission(createdDaysAgo(200)), storetest.Submission(createdDaysAgo(80))
	all := []*tasks.Submission{held, processing, old, young, recent}
	db.MustSubmit(t, all...)
	require.Len(t, db.Claim(t), len(all))
	report := func(s *tasks.Submission, o task.Outcome) {
		require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: o}).Verdict)
	}
	report(held, task.SentUnknown)
	report(old, task.SentOK)
	report(young, task.SentOK)
	setEndedDaysAgo(t, db, 91)
	report(recent, task.SentFailed)
	db.MustSubmit(t, pending, scheduled)
	db.Exec(t, `update task_live set updated_at = now() - interval '200 days'`)

	require.Equal(t, 1, db.MustArchive(t, maintenance.ArchiveRun{})["tasks"])
	for name, s := range map[string]*tasks.Submission{"pending": pending, "processing": processing, "held": held, "scheduled": scheduled, "ended just now": recent, "created after the cutoff": young} {
		require.False(t, db.MustTask(t, s.ID).Archived, name)
	}
	require.True(t, db.MustTask(t, old.ID).Archived)
	require.Empty(t, db.MustArchive(t, maintenance.ArchiveRun{}), "a second run has nothing to do")
}

// insertOldTasks inserts n final tasks that were created so many days ago and ended an hour later. Every fourth task failed by
// timeout, so a late report of success would still be applied.
func insertOldTasks(t *testing.T, db *storetest.DB, n, days int) {
	t.Helper()
	db.Exec(t, fmt.Sprintf(`
with b as (
	insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
	select (left(u, 8) || '-' || substr(u, 9, 4) || '-7' || substr(u, 14, 3) || '-' || substr(u, 17, 4) || '-' || right(u, 12))::uuid, 0, 'default', 5, 3, 0, '13800138000', 'x'
	from (select lpad(to_hex(((extract(epoch from now()) - %[2]d * 86400) * 1000)::bigint + i), 12, '0') || '0000' || '8' || substr(md5(i::text), 1, 15) as u
		from generate_series(1, %[1]d) i) u
	returning id, seq
)
insert into task_done (id, status, reason, retry_count, ended, claim_id, app_id, claimed_by, reported_at)
select id, case when seq %% 4 = 0 then 3 else 2 end, case when seq %% 4 = 0 then 3 else 0 end, 0, case when seq %% 4 = 0 then 4 else 5 end, 7, 'app', 0,
	now() - interval '%[2]d days' + interval '1 hour' from b`, n, days))
}

func TestLateReportDuringArchiveLosesNoTask(t *testing.T) {
	t.Parallel()
	db, other := storetest.OpenTwo(t, storetest.RetentionDays(90, 0))
	instances := []*storetest.DB{db, other}
	const total = 2000
	insertOldTasks(t, db, total, 100)
	before := db.MustStatistics(t)
	failed, err := store.QueryRows(t.Context(), db.Owner, pgx.RowTo[task.ID],
		`select id from task_done where status = 3 order by md5(id::text)`)
	require.NoError(t, err)
	require.Len(t, failed, total/4)

	var all sync.WaitGroup
	verdicts := make([]task.Verdict, len(failed))
	start := make(chan struct{})
	for n := range 4 {
		all.Go(func() {
			<-start
			for i := n; i < len(failed); i += 4 {
				err := storetest.RetryBusy(func() error {
					out, err := instances[n%2].Report(task.Report{TaskID: failed[i], AppID: "app", ClaimID: 7, Outcome: task.SentOK})
					if err == nil && out.Found {
						verdicts[i] = out.Verdict
					}
					return err
				})
				if err != nil {
					t.Errorf("report: %v", err)
				}
			}
		})
	}
	for _, instance := range instances {
		all.Go(func() {
			<-start
			for _, err := range instance.Maintenance.Archive(t.Context(), maintenance.ArchiveRun{}) {
				if err != nil {
					t.Errorf("archive: %v", err)
				}
				if _, err := instance.Tasks.Statistics(t.Context()); err != nil {
					t.Errorf("statistics: %v", err)
				}
			}
		})
	}
	close(start)
	all.Wait()
	db.MustArchive(t, maintenance.ArchiveRun{}) // the tasks that a report had locked during the first run

	count := map[task.Verdict]int{}
	for i, id := range failed {
		detail := db.MustTask(t, id)
		count[verdicts[i]]++
		switch verdicts[i] {
		case task.Applied:
			require.Equal(t, task.Succeeded, detail.State)
			require.False(t, detail.Archived, "the task ended just now")
		case task.Stale:
			require.Equal(t, task.Failed, detail.State)
			require.True(t, detail.Archived)
		default:
			require.Fail(t, "a report got no verdict", "%v: %q", id, verdicts[i])
		}
	}
	t.Logf("verdicts: %v", count)
	require.Equal(t, len(failed), db.Count(t, `select count(*) from report_logs`), "every report is kept")
	require.Equal(t, fmt.Sprint(count[task.Applied], 0, count[task.Applied], total-count[task.Applied]), taskCounts(t, db))
	after := db.MustStatistics(t)
	require.Equal(t, before.SMS.Succeeded+int64(count[task.Applied]), after.SMS.Succeeded)
	require.Equal(t, before.SMS.Failed-int64(count[task.Applied]), after.SMS.Failed)
}

func TestNothingChangesAnArchivedTask(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	insertOldTasks(t, db, 4, 100)
	cancelled := storetest.Submission(createdDaysAgo(100))
	db.MustSubmit(t, cancelled)
	_, err := db.Tasks.Cancel(t.Context(), cancelled.ID, nil)
	require.NoError(t, err)
	sent := storetest.Value[task.ID](t, db, `select id from task_done where status = 2 limit 1`)
	failed := storetest.Value[task.ID](t, db, `select id from task_done where reason = 3`)
	setEndedDaysAgo(t, db, 99)
	require.Equal(t, 5, db.MustArchive(t, maintenance.ArchiveRun{})["tasks"])

	ok := task.Report{TaskID: sent, AppID: "app", ClaimID: 7, Outcome: task.SentOK}
	require.Equal(t, task.Already, db.MustReport(t, ok).Verdict)
	for name, r := range map[string]task.Report{
		"a late success": {TaskID: failed, AppID: "app", ClaimID: 7, Outcome: task.SentOK},
		"another app":    {TaskID: sent, AppID: "other", ClaimID: 7, Outcome: task.SentOK},
		"a late failure": {TaskID: sent, AppID: "app", Outcome: task.SentFailed},
	} {
		require.Equal(t, task.Stale, db.MustReport(t, r).Verdict, name)
	}
	require.Equal(t, 3, db.Count(t, `select count(*) from report_logs where verdict = 'stale_claim'`), "late reports are logged")
	byOther := ok
	byOther.CallerID = 6
	outs, errs := db.Tasks.Report([]*tasks.Report{{Report: byOther, Queues: []string{"wechat"}, Request: []byte(`{}`)}, storetest.Report(task.Report{TaskID: task.NewID(), AppID: "app"})})
	require.Equal(t, []error{nil, nil}, errs)
	require.False(t, outs[0].Found, "a task of a queue that is not the caller's does not exist")
	require.False(t, outs[1].Found)

	_, err = db.Tasks.RetryFailed(t.Context(), failed, storetest.Tester)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	require.ErrorContains(t, err, "archived")
	_, err = db.Tasks.Resolve(t.Context(), failed, task.ResolveResend, storetest.Tester)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	_, err = db.Tasks.Cancel(t.Context(), sent, nil)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	again, err := db.Tasks.Cancel(t.Context(), cancelled.ID, nil)
	require.NoError(t, err, "the task is cancelled already")
	require.Equal(t, task.Cancelled, again.Reason)
	_, err = db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: sent, AppID: "app", Lease: time.Minute}, nil)
	require.Equal(t, task.CodeStaleClaim, task.CodeOf(err))
	require.Zero(t, db.Count(t, `select count(*) from operator_actions`))
	require.Equal(t, "0 0 0 5", taskCounts(t, db))
}

func TestMaintenanceCompletesInterruptedArchive(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	const total = 3*maintenance.ArchiveRows + 7
	insertOldTasks(t, db, total, 100)
	before := db.MustStatistics(t)
	steps := 0
	for _, err := range db.Maintenance.Archive(t.Context(), maintenance.ArchiveRun{}) {
		require.NoError(t, err)
		if steps++; steps == 2 {
			break
		}
	}
	require.Equal(t, 2*maintenance.ArchiveRows, db.Count(t, `select count(*) from archived_tasks`))
	require.Equal(t, before, db.MustStatistics(t))
	db.Maintain(t)
	require.Equal(t, total, db.Count(t, `select count(*) from archived_tasks`))
	require.Equal(t, before, db.MustStatistics(t))
}

func TestArchivePlansUseIndexesWithStaleStatistics(t *testing.T) {
	t.Parallel()
	page, old := `'epoch', `+storetest.AnID+`, now() - interval '90 days', 500`, `array[`+storetest.AnID+`], now() - interval '90 days'`
	storetest.Plans{
		Fill: `
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
	select gen_random_uuid(), 0, 'default', 5, 3, 0, '13800138000', 'x' from generate_series(1, 20000);
insert into task_done (id, status, reason, retry_count, ended) select id, 2, 0, 0, 0 from tasks;
insert into submission_keys select id, id, id from tasks;
insert into archived_tasks (id, seq, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, created_at, status, reason, retry_count, ended, reported_at)
	select id, seq, 0, 'default', 5, 3, 0, '13800138000', 'x', now(), 2, 0, 0, 5, now() from tasks`,
		Tables: []string{"tasks", "task_done", "submission_keys", "archived_tasks"},
		Args:   map[string]string{"pageTasksSQL": page, "archiveTasksSQL": old, "archivedSQL": storetest.SomeIDs, "archivedCallsSQL": storetest.SomeIDs + ", " + storetest.SomeIDs, "knownTasksSQL": storetest.SomeIDs},
		Index: map[string]string{
			"pageTasksSQL": "task_done_pkey", "archiveTasksSQL": "task_done_pkey", "archivedSQL": "archived_tasks_pkey", "archivedCallsSQL": "archived_tasks_pkey", "knownTasksSQL": "archived_tasks_pkey",
		},
	}.Require(t)
}
