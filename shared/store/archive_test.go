package store

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// made gives a submission the id that it would have had so many days ago.
func made(days int) func(*Submission) {
	return func(s *Submission) {
		floor := task.IDFloor(time.Now().AddDate(0, 0, -days))
		copy(s.ID[:8], floor[:8])
	}
}

// finished puts the end of every final task so many days back.
func (db *DB) finished(t *testing.T, days int) {
	t.Helper()
	_, err := db.owner(t).Exec(t.Context(), `update task_done set reported_at = now() - make_interval(days => $1), sent_at = sent_at - make_interval(days => $1)`, days)
	require.NoError(t, err)
}

// mustArchive runs an archive and gives what it moved and dropped.
func (db *DB) mustArchive(t *testing.T, run ArchiveRun) (tasks int, partitions []string) {
	t.Helper()
	for step, err := range db.Archive(t.Context(), run) {
		require.NoError(t, err)
		require.False(t, step.InUse, step.Partition)
		require.Empty(t, step.Failed)
		if step.Table == "tasks" {
			tasks += step.Rows
		}
		if step.Partition != "" {
			partitions = append(partitions, step.Partition)
		}
	}
	return tasks, partitions
}

// places counts where the tasks are.
func (db *DB) places(t *testing.T) string {
	t.Helper()
	return fmt.Sprint(db.count(t, `select count(*) from tasks`), db.count(t, `select count(*) from task_live`),
		db.count(t, `select count(*) from task_done`), db.count(t, `select count(*) from archived_tasks`))
}

func TestAnArchivedTaskIsStillFoundByItsIDAndItsKey(t *testing.T) {
	t.Parallel()
	db := keeping(t, sandbox.NewDatabase(t), 90, 0)
	s := message(keyed("k", "body"), made(91), func(s *Submission) {
		s.Source, s.CallbackURL, s.Metadata, s.Queue = "shop", "https://a.example/cb", []byte(`{"a": 1}`), "q"
		s.ExpiresAt = time.Now().Add(time.Hour)
	})
	db.mustSubmit(t, s)
	c := db.claim(t, func(r *ClaimRequest) { r.Queue = "q" })[0]
	report := task.Report{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentFailed, Message: "no such number", ErrorCode: "E7"}
	require.Equal(t, task.Applied, db.mustReport(t, report).Verdict)
	db.finished(t, 91)
	before, statistics := db.mustTask(t, s.ID), db.mustCount(t)

	moved, _ := db.mustArchive(t, ArchiveRun{})
	require.Equal(t, 1, moved)
	require.Equal(t, "0 0 0 1", db.places(t))
	require.Zero(t, db.count(t, `select count(*) from sms_tasks`), "the view is of the main tables")
	after := db.mustTask(t, s.ID)
	require.True(t, after.Archived)
	after.Archived = false
	require.Equal(t, before, after, "nothing of it is lost")
	byKey, err := db.TaskByKey(t.Context(), *s.Key)
	require.NoError(t, err)
	require.True(t, byKey.Archived)
	require.Equal(t, statistics, db.mustCount(t))

	again := message(keyed("k", "body"))
	out := db.mustSubmit(t, again)[0]
	require.Equal(t, Submitted{ID: s.ID, State: task.Failed, Replayed: true, Archived: true, Text: "body"}, out)
	other := db.mustSubmit(t, message(keyed("k", "another body")))[0]
	require.Equal(t, task.CodeKeyReused, other.Refused.Code)
	live := message(keyed("l", "body"))
	db.mustSubmit(t, live)
	outs := db.mustSubmit(t, message(keyed("l", "body")), message(keyed("k", "body")), message(keyed("k", "body")))
	require.Equal(t, []bool{false, true, true}, []bool{outs[0].Archived, outs[1].Archived, outs[2].Archived})
	require.Equal(t, []task.ID{live.ID, s.ID, s.ID}, []task.ID{outs[0].ID, outs[1].ID, outs[2].ID})
	require.Equal(t, 1, db.count(t, `select count(*) from tasks`), "no replay made a task")
}

func TestARetriedSubmissionFindsItsArchivedTask(t *testing.T) {
	t.Parallel()
	db := keeping(t, sandbox.NewDatabase(t), 90, 0)
	plain, withKey := message(made(100)), message(keyed("k", "hello"), made(100))
	for _, s := range []*Submission{plain, withKey} {
		db.mustSubmit(t, s)
		db.claim(t)
		require.Equal(t, task.Applied, db.mustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentOK}).Verdict)
	}
	db.finished(t, 99)
	moved, _ := db.mustArchive(t, ArchiveRun{})
	require.Equal(t, 2, moved)
	for _, out := range db.mustSubmit(t, plain, withKey) { // as if the answer to their COMMIT had been lost
		require.Equal(t, task.Succeeded, out.State)
		require.True(t, out.Archived)
		require.False(t, out.Replayed, "it is the first call itself")
	}
	require.Equal(t, "0 0 0 2", db.places(t), "the retry made no second task")
}

func TestOnlyWhatIsFinalAndOldIsArchived(t *testing.T) {
	t.Parallel()
	db := keeping(t, sandbox.NewDatabase(t), 90, 0)
	pending, processing, held := message(made(200)), message(made(200)), message(made(200), func(s *Submission) { s.OnUnknown = task.Hold })
	scheduled := message(made(200), func(s *Submission) { s.SendAt = time.Now().Add(time.Hour) })
	old, recent, young := message(made(200)), message(made(200)), message(made(80))
	all := []*Submission{held, processing, old, young, recent}
	db.mustSubmit(t, all...)
	require.Len(t, db.claim(t), len(all))
	report := func(s *Submission, o task.Outcome) {
		require.Equal(t, task.Applied, db.mustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: o}).Verdict)
	}
	report(held, task.SentUnknown)
	report(old, task.SentOK)
	report(young, task.SentOK)
	db.finished(t, 91)
	report(recent, task.SentFailed)
	db.mustSubmit(t, pending, scheduled)
	_, err := db.owner(t).Exec(t.Context(), `update task_live set updated_at = now() - interval '200 days'`)
	require.NoError(t, err)

	moved, _ := db.mustArchive(t, ArchiveRun{})
	require.Equal(t, 1, moved)
	for name, s := range map[string]*Submission{"pending": pending, "processing": processing, "held": held, "scheduled": scheduled, "finished of late": recent, "made of late": young} {
		require.False(t, db.mustTask(t, s.ID).Archived, name)
	}
	require.True(t, db.mustTask(t, old.ID).Archived)
	moved, _ = db.mustArchive(t, ArchiveRun{})
	require.Zero(t, moved, "the same again has nothing to do")

	forever := keeping(t, sandbox.NewDatabase(t), 0, 0)
	forever.mustSubmit(t, message(made(400)))
	forever.claim(t)
	forever.mustReport(t, task.Report{TaskID: forever.onlyTask(t), AppID: "app", Outcome: task.SentOK})
	forever.finished(t, 399)
	moved, _ = forever.mustArchive(t, ArchiveRun{})
	require.Zero(t, moved, "0 days are for ever")
	moved, _ = forever.mustArchive(t, ArchiveRun{Before: time.Now().AddDate(0, 0, -450)})
	require.Zero(t, moved)
	moved, _ = forever.mustArchive(t, ArchiveRun{Before: time.Now().AddDate(1, 0, 0), DryRun: true})
	require.Equal(t, 1, moved)
	require.Equal(t, "1 0 1 0", forever.places(t), "a dry run changes nothing")
	moved, _ = forever.mustArchive(t, ArchiveRun{Before: time.Now().AddDate(1, 0, 0)})
	require.Equal(t, 1, moved, "a date given by hand is meant")
}

func (db *DB) onlyTask(t *testing.T) (id task.ID) {
	t.Helper()
	require.NoError(t, db.owner(t).QueryRow(t.Context(), `select id from tasks`).Scan(&id))
	return id
}

// fillOld makes n final tasks that were finished days ago: of each four one
// failed by timeout, whose late success would still count.
func fillOld(t *testing.T, url string, n, days int) {
	t.Helper()
	_, err := owner(t, url).Exec(t.Context(), fmt.Sprintf(`
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
	require.NoError(t, err)
}

func TestALateReportAndTheArchiveNeverLoseOrSplitATask(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	const tasks = 2000
	fillOld(t, url, tasks, 100)
	instances := []*DB{keeping(t, url, 90, 0), keeping(t, url, 90, 0)}
	db := instances[0]
	before := db.mustCount(t)
	rows, err := db.owner(t).Query(t.Context(), `select id from task_done where status = 3 order by md5(id::text)`)
	require.NoError(t, err)
	var failed []task.ID
	for rows.Next() {
		var id task.ID
		require.NoError(t, rows.Scan(&id))
		failed = append(failed, id)
	}
	require.NoError(t, rows.Err())
	require.Len(t, failed, tasks/4)

	var all sync.WaitGroup
	verdicts := make([]task.Verdict, len(failed))
	start := make(chan struct{})
	for n := range 4 {
		all.Go(func() {
			<-start
			for i := n; i < len(failed); i += 4 {
				err := asAsked(func() error {
					outs, errs := instances[n%2].Report([]*Report{{Report: task.Report{TaskID: failed[i], AppID: "app", ClaimID: 7, Outcome: task.SentOK}, Request: []byte(`{}`)}})
					if errs[0] == nil && outs[0].Found {
						verdicts[i] = outs[0].Verdict
					}
					return errs[0]
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
			for _, err := range instance.Archive(t.Context(), ArchiveRun{}) {
				if err != nil {
					t.Errorf("archive: %v", err)
				}
				_, err := instance.Statistics(t.Context())
				if err != nil {
					t.Errorf("statistics: %v", err)
				}
			}
		})
	}
	close(start)
	all.Wait()
	db.mustArchive(t, ArchiveRun{}) // what a report held

	count := map[task.Verdict]int{}
	for i, id := range failed {
		d, err := db.Task(t.Context(), id)
		require.NoError(t, err)
		count[verdicts[i]]++
		switch verdicts[i] {
		case task.Applied:
			require.Equal(t, task.Succeeded, d.State)
			require.False(t, d.Archived, "it was finished just now")
		case task.Stale:
			require.Equal(t, task.Failed, d.State)
			require.True(t, d.Archived)
		default:
			require.Fail(t, "a report got no answer", "%v: %q", id, verdicts[i])
		}
	}
	t.Logf("verdicts: %v", count)
	require.Equal(t, len(failed), db.count(t, `select count(*) from report_logs`), "every report is kept")
	require.Equal(t, fmt.Sprint(count[task.Applied], 0, count[task.Applied], tasks-count[task.Applied]), db.places(t))
	after := db.mustCount(t)
	require.Equal(t, before.Succeeded+int64(count[task.Applied]), after.Succeeded)
	require.Equal(t, before.Failed-int64(count[task.Applied]), after.Failed)
}

func TestNothingChangesAnArchivedTask(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, by := keeping(t, url, 90, 0), Operator{CallerID: 3, Name: "ann", RequestID: "r"}
	fillOld(t, url, 4, 100)
	withdrawn := message(made(100))
	db.mustSubmit(t, withdrawn)
	_, err := db.Cancel(t.Context(), withdrawn.ID, nil)
	require.NoError(t, err)
	var sent, failed task.ID
	require.NoError(t, db.owner(t).QueryRow(t.Context(), `select id from task_done where status = 2 limit 1`).Scan(&sent))
	require.NoError(t, db.owner(t).QueryRow(t.Context(), `select id from task_done where reason = 3`).Scan(&failed))
	db.finished(t, 99)
	moved, _ := db.mustArchive(t, ArchiveRun{})
	require.Equal(t, 5, moved)

	ok := task.Report{TaskID: sent, AppID: "app", ClaimID: 7, Outcome: task.SentOK}
	require.Equal(t, task.Already, db.mustReport(t, ok).Verdict)
	for name, r := range map[string]task.Report{
		"a late success": {TaskID: failed, AppID: "app", ClaimID: 7, Outcome: task.SentOK},
		"another app":    {TaskID: sent, AppID: "other", ClaimID: 7, Outcome: task.SentOK},
		"a late failure": {TaskID: sent, AppID: "app", Outcome: task.SentFailed},
	} {
		require.Equal(t, task.Stale, db.mustReport(t, r).Verdict, name)
	}
	require.Equal(t, 3, db.count(t, `select count(*) from report_logs where verdict = 'stale_claim'`), "they are evidence")
	outs, errs := db.Report([]*Report{{Report: ok, Queues: []string{"wechat"}, Request: []byte(`{}`)}, {Report: task.Report{TaskID: task.NewID(), AppID: "app"}, Request: []byte(`{}`)}})
	require.Equal(t, []error{nil, nil}, errs)
	require.False(t, outs[0].Found, "a task of a queue that is not the caller's does not exist")
	require.False(t, outs[1].Found)

	_, err = db.RetryFailed(t.Context(), failed, by)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	require.ErrorContains(t, err, "archived")
	_, err = db.Resolve(t.Context(), failed, task.ResolveResend, by)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	_, err = db.Cancel(t.Context(), sent, nil)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	again, err := db.Cancel(t.Context(), withdrawn.ID, nil)
	require.NoError(t, err, "it is cancelled already")
	require.Equal(t, task.Cancelled, again.Reason)
	_, err = db.Extend(t.Context(), Extension{TaskID: sent, AppID: "app", Lease: time.Minute}, nil)
	require.Equal(t, task.CodeStaleClaim, task.CodeOf(err))
	require.Zero(t, db.count(t, `select count(*) from operator_actions`))
	require.Equal(t, "0 0 0 5", db.places(t))
}

func TestAnArchiveThatIsLeftGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := keeping(t, url, 90, 0)
	const tasks = 3*archiveRows + 7
	fillOld(t, url, tasks, 100)
	before := db.mustCount(t)
	steps := 0
	for _, err := range db.Archive(t.Context(), ArchiveRun{}) {
		require.NoError(t, err)
		if steps++; steps == 2 {
			break
		}
	}
	require.Equal(t, 2*archiveRows, db.count(t, `select count(*) from archived_tasks`))
	require.Equal(t, before, db.mustCount(t))
	for more := true; more; {
		var err error
		_, more, err = db.RunMaintenance(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, tasks, db.count(t, `select count(*) from archived_tasks`))
	require.Equal(t, before, db.mustCount(t))
	_, more, err := db.RunMaintenance(t.Context())
	require.NoError(t, err)
	require.False(t, more)
}

func TestPlansOfTheArchiveMadeOnEmptyTablesStillUseTheIndexes(t *testing.T) {
	t.Parallel()
	page, old := `'epoch', `+anID+`, now() - interval '90 days', 500`, `array[`+anID+`], now() - interval '90 days'`
	planned{
		burst: `
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
	select gen_random_uuid(), 0, 'default', 5, 3, 0, '13800138000', 'x' from generate_series(1, 50000);
insert into task_done (id, status, reason, retry_count, ended) select id, 2, 0, 0, 0 from tasks;
insert into submission_keys select id, id, id from tasks;
insert into archived_tasks (id, seq, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, created_at, status, reason, retry_count, ended, reported_at)
	select id, seq, 0, 'default', 5, 3, 0, '13800138000', 'x', now(), 2, 0, 0, 5, now() from tasks`,
		tables: []string{"tasks", "task_done", "submission_keys", "archived_tasks"},
		cases:  map[string]string{"pageTasksSQL": page, "archiveTasksSQL": old, "archivedSQL": someIDs, "archivedCallsSQL": someIDs + ", " + someIDs, "knownTasksSQL": someIDs},
		index: map[string]string{
			"pageTasksSQL": "task_done_pkey", "archiveTasksSQL": "task_done_pkey", "archivedSQL": "archived_tasks_pkey", "archivedCallsSQL": "archived_tasks_pkey", "knownTasksSQL": "archived_tasks_pkey",
		},
	}.require(t)
}
