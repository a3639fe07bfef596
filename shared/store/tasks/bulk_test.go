package tasks_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

var bulkOperator = store.Operator{CallerID: 7, Name: "ann", RequestID: "r1", Reason: "the campaign was withdrawn"}

func pendingTasks() tasks.BulkFilter {
	return tasks.BulkFilter{State: "pending", To: time.Now().Add(time.Minute)}
}

func submitMany(t *testing.T, db *storetest.DB, n int, change ...func(*tasks.Submission)) (ids []task.ID) {
	t.Helper()
	subs := make([]*tasks.Submission, n)
	for i := range subs {
		subs[i] = storetest.Submission(change...)
		ids = append(ids, subs[i].ID)
	}
	db.MustSubmit(t, subs...)
	return ids
}

func startBulk(t *testing.T, db *storetest.DB, action tasks.BulkAction, filter tasks.BulkFilter) tasks.Bulk {
	t.Helper()
	n, err := db.Tasks.CountMatches(t.Context(), filter)
	require.NoError(t, err)
	b, err := db.Tasks.StartBulk(t.Context(), task.NewID(), action, filter, n, tasks.TokenProof{}, bulkOperator)
	require.NoError(t, err)
	return b
}

// runBulks runs batches until none is left.
func runBulks(t *testing.T, db *storetest.DB, limit int) {
	t.Helper()
	for range 1000 {
		ran, err := db.Tasks.RunBulk(t.Context(), limit)
		require.NoError(t, err)
		if !ran.More {
			return
		}
	}
	t.Fatal("bulk changes did not end")
}

func mustBulk(t *testing.T, db *storetest.DB, id task.ID) tasks.Bulk {
	t.Helper()
	b, err := db.Tasks.BulkByID(t.Context(), id)
	require.NoError(t, err)
	return b
}

func TestBulkChangesExactlyWhatMatches(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submitMany(t, db, 23)
	submitMany(t, db, 3, storetest.InQueue("other"))
	filter := pendingTasks()
	filter.Queue = task.DefaultQueue
	b := startBulk(t, db, tasks.BulkCancel, filter)
	require.Equal(t, 23, b.Matched)
	runBulks(t, db, 5)
	b = mustBulk(t, db, b.ID)
	require.NotNil(t, b.FinishedAt)
	require.Equal(t, []int{23, 23, 0}, []int{b.Looked, b.Changed, b.Refused})
	require.Equal(t, 23, db.Count(t, `select count(*) from task_done where reason = 6 and result = '已取消'`))
	require.Equal(t, 3, db.Count(t, `select count(*) from task_live where queue = 'other'`))
	require.Equal(t, 23, db.Count(t, `select count(*) from operator_actions where action = 'task.cancel' and caller_name = 'ann' and reason = 'the campaign was withdrawn'`))
	require.Equal(t, 23, db.Count(t, `select count(*) from report_logs where verdict = 'cancelled' and error_message = 'the campaign was withdrawn'`))
	require.Equal(t, 1, db.Count(t, `select count(*) from operator_actions where action = 'bulk.cancel'`))
}

func TestBulkRetryMakesTasksPending(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for range 4 {
		db.MustSubmit(t, storetest.Submission())
		c := db.ClaimAs(t, "app", 1)[0]
		db.MustReport(t, task.Report{TaskID: c.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentFailed})
	}
	b := startBulk(t, db, tasks.BulkRetry, tasks.BulkFilter{State: "failed", Reason: "rejected", To: time.Now().Add(time.Minute)})
	ran, err := db.Tasks.RunBulk(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, tasks.PendingByQueue{task.DefaultQueue: 4}, ran.Pending)
	require.Equal(t, 4, mustBulk(t, db, b.ID).Changed)
	require.Len(t, db.ClaimAs(t, "app", 10), 4)
}

// Cancelled tasks, and tasks whose message may have been sent, are retried only if the filter has their reason.
func TestBulkRetryWithoutReasonLeavesCancelledAndUnknownTasks(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ids := submitMany(t, db, 3, func(s *tasks.Submission) { s.OnUnknown = task.Fail })
	_, err := db.Tasks.Cancel(t.Context(), ids[0], nil)
	require.NoError(t, err)
	for _, c := range db.ClaimAs(t, "app", 2) {
		outcome := task.SentFailed
		if c.ID == ids[1] {
			outcome = task.SentUnknown
		}
		db.MustReport(t, task.Report{TaskID: c.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: outcome})
	}
	failed := func(reason string) tasks.BulkFilter {
		return tasks.BulkFilter{State: "failed", Reason: reason, To: time.Now().Add(time.Minute)}
	}
	b := startBulk(t, db, tasks.BulkRetry, failed(""))
	runBulks(t, db, 10)
	b = mustBulk(t, db, b.ID)
	require.Equal(t, []int{1, 2}, []int{b.Changed, b.Refused})
	require.Regexp(t, "the reason of the task is (cancelled|unknown); such tasks are retried only if the filter has this reason", *b.LastError)
	require.Len(t, db.ClaimAs(t, "app", 10), 1)
	for _, reason := range []string{"cancelled", "unknown"} {
		startBulk(t, db, tasks.BulkRetry, failed(reason))
	}
	runBulks(t, db, 10)
	require.Len(t, db.ClaimAs(t, "app", 10), 2)
}

func TestBulkLeavesTasksThatChangedMeanwhile(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submitMany(t, db, 6)
	b := startBulk(t, db, tasks.BulkCancel, pendingTasks())
	db.ClaimAs(t, "app", 2)
	submitMany(t, db, 3, storetest.InQueue("later"))
	runBulks(t, db, 4)
	b = mustBulk(t, db, b.ID)
	require.LessOrEqual(t, b.Changed, b.Matched)
	require.Equal(t, 2, db.Count(t, `select count(*) from task_live where state = 2`), "claimed tasks stay with their sender")
}

// Tasks that match only after the count may be changed in place of counted ones. Then StopReason says that more tasks match.
func TestBulkSaysThatMoreTasksMatchThanWereCounted(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submitMany(t, db, 6)
	claimed := db.ClaimAs(t, "app", 2)
	b := startBulk(t, db, tasks.BulkCancel, pendingTasks())
	for _, c := range claimed {
		db.MustReport(t, task.Report{TaskID: c.ID, AppID: "app", Outcome: task.Released})
	}
	runBulks(t, db, 3)
	b = mustBulk(t, db, b.ID)
	require.Equal(t, []int{4, 4}, []int{b.Matched, b.Changed})
	require.NotNil(t, b.FinishedAt)
	require.Equal(t, "more tasks match by now than were counted: begin another bulk change", *b.StopReason)
	require.Equal(t, 2, db.Count(t, `select count(*) from task_live`))
}

// Each task is changed and counted once, even if many processes run batches and some of them die.
func TestBulkRunsOnceInManyProcesses(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submitMany(t, db, 60)
	b := startBulk(t, db, tasks.BulkCancel, pendingTasks())
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for range 10 {
				_, _ = db.Tasks.RunBulk(t.Context(), 7)
				db.Exec(t, `update bulk_changes set leased_to = now() - interval '1 second'`) // as if the process of the batch had died
			}
		})
	}
	all.Wait()
	runBulks(t, db, 7)
	b = mustBulk(t, db, b.ID)
	require.Equal(t, 60, b.Changed)
	require.Equal(t, 60, db.Count(t, `select count(*) from operator_actions where action = 'task.cancel'`))
	require.Equal(t, 60, db.Count(t, `select count(*) from report_logs where verdict = 'cancelled'`))
}

// After the process of a batch has died, the caller of RunBulk must learn when the bulk change can go on.
func TestRunBulkReturnsTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	run := func() tasks.BulkResult {
		ran, err := db.Tasks.RunBulk(t.Context(), 7)
		require.NoError(t, err)
		return ran
	}
	require.Zero(t, run(), "no bulk change")
	submitMany(t, db, 3)
	startBulk(t, db, tasks.BulkCancel, pendingTasks())
	db.Exec(t, `update bulk_changes set leased_to = now() + interval '20 seconds'`)
	ran := run()
	require.False(t, ran.More)
	require.WithinDuration(t, time.Now().Add(20*time.Second), ran.Next, 10*time.Second)
	db.Exec(t, `update bulk_changes set leased_to = now() - interval '1 second'`)
	require.Equal(t, 3, run().Changed)
}

func TestStoppedBulkChangesNoMoreTasks(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submitMany(t, db, 10)
	b := startBulk(t, db, tasks.BulkCancel, pendingTasks())
	_, err := db.Tasks.RunBulk(t.Context(), 3)
	require.NoError(t, err)
	b, err = db.Tasks.StopBulk(t.Context(), b.ID, store.Operator{Name: "bob", RequestID: "r2"})
	require.NoError(t, err)
	require.Equal(t, "bob", *b.StoppedBy)
	runBulks(t, db, 3)
	require.Equal(t, 7, db.Count(t, `select count(*) from task_live`))
	again, err := db.Tasks.StopBulk(t.Context(), b.ID, store.Operator{Name: "eve", RequestID: "r3"})
	require.NoError(t, err)
	require.Equal(t, "bob", *again.StoppedBy)
	require.Equal(t, 1, db.Count(t, `select count(*) from operator_actions where action = 'bulk.stop'`))
}

func TestNewBulkChangesDoNotDelayOlderOnes(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submitMany(t, db, 6)
	older := startBulk(t, db, tasks.BulkCancel, pendingTasks())
	for range 2 {
		_, err := db.Tasks.RunBulk(t.Context(), 2)
		require.NoError(t, err)
		startBulk(t, db, tasks.BulkCancel, pendingTasks())
	}
	require.Equal(t, 4, mustBulk(t, db, older.ID).Changed, "both batches are of the older bulk change")
}

// startBulkAs starts a bulk cancel as the caller name. If there is no such caller, startBulkAs creates it with the role admin and these
// queues (an array of Postgres; '{}' = all).
func startBulkAs(t *testing.T, db *storetest.DB, name, queues string, filter tasks.BulkFilter) (tasks.Bulk, error) {
	t.Helper()
	by := store.Operator{Name: name, RequestID: "r1", Reason: "the campaign was withdrawn"}
	by.CallerID = storetest.Value[int64](t, db, `
insert into callers (name, token_hash, roles, queues) values ($1, sha256('first'), '{admin}', $2::text::text[])
on conflict (name) do update set name = excluded.name returning id`, name, queues)
	token := tasks.TokenProof{Salt: []byte("salt")}
	token.Proof = storetest.Value[[]byte](t, db, `select token_proof($1, $2)`, by.CallerID, token.Salt)
	n, err := db.Tasks.CountMatches(t.Context(), filter)
	require.NoError(t, err)
	return db.Tasks.StartBulk(t.Context(), task.NewID(), tasks.BulkCancel, filter, n, token, by)
}

// A bulk change continues only while its operator would be allowed to begin it.
func TestBulkStopsIfItsOperatorLostTheRights(t *testing.T) {
	t.Parallel()
	two := []string{"default", "promo"}
	for name, c := range map[string]struct {
		queues     []string // of the operator and of the filter; nil = all
		queue      string   // of the filter
		change     string   // of the operator
		stopReason string   // "" = the bulk change continues
	}{
		"revoked":              {two, "", `revoked_at = now()`, "its operator was revoked"},
		"rotated":              {two, "", `token_hash = sha256('second'), rotated_at = now()`, "the token of its operator was replaced"},
		"demoted":              {two, "", `roles = '{viewer,sender}'`, "its operator is not an admin any more"},
		"narrowed":             {two, "", `queues = '{default}'`, "its operator may not use all of its queues any more"},
		"narrowed from all":    {nil, "", `queues = '{default}'`, "its operator may not use all of its queues any more"},
		"narrowed to others":   {two, "promo", `queues = '{default}'`, "its operator may not use all of its queues any more"},
		"narrowed to this one": {two, "promo", `queues = '{promo}'`, ""},
		"widened":              {two, "", `queues = '{}'`, ""},
		"another quota":        {two, "", `max_waiting_tasks = 5`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			submitMany(t, db, 5, storetest.InQueue("promo"))
			filter := pendingTasks()
			filter.Queues, filter.Queue = c.queues, c.queue
			b, err := startBulkAs(t, db, "ann", "{"+strings.Join(c.queues, ",")+"}", filter)
			require.NoError(t, err)
			_, err = db.Tasks.RunBulk(t.Context(), 2)
			require.NoError(t, err)
			db.Exec(t, `update callers set `+c.change+` where name = 'ann'`)
			runBulks(t, db, 2)
			b = mustBulk(t, db, b.ID)
			require.NotNil(t, b.FinishedAt)
			if c.stopReason == "" {
				require.Nil(t, b.StopReason)
				require.Equal(t, 5, b.Changed)
				return
			}
			require.NotNil(t, b.StopReason)
			require.Equal(t, c.stopReason, *b.StopReason)
			require.Equal(t, 2, b.Changed)
			require.Equal(t, 3, db.Count(t, `select count(*) from task_live`))
		})
	}
}

// The callers of one account run at most 5 bulk changes at once, even if they start them concurrently, so other accounts can still start
// some. All accounts together run at most 20. A bulk change that is limited to queues starts only while fewer than 15 run.
func TestNumberOfRunningBulkChangesIsLimited(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submitMany(t, db, 1)
	_, err := startBulkAs(t, db, "ops", "{default}", pendingTasks())
	require.NoError(t, err)
	db.Exec(t, `insert into callers (name, token_hash, roles, queues, made_by, account_id) select 'ops.b', sha256('x'), '{admin}', '{default}', id, id from callers`)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() { _, _ = startBulkAs(t, db, []string{"ops", "ops.b"}[i%2], "{default}", pendingTasks()) })
	}
	all.Wait()
	require.Equal(t, 5, db.Count(t, `select count(*) from bulk_changes`))
	_, err = startBulkAs(t, db, "ops.b", "{default}", pendingTasks())
	require.ErrorContains(t, err, "5 bulk changes of this caller are running; wait for one, or stop one")
	_, err = startBulkAs(t, db, "neighbour", "{default}", pendingTasks())
	require.NoError(t, err)
	limited := pendingTasks()
	limited.Queues = []string{"default"}
	for i := range 14 {
		_, err = startBulkAs(t, db, "other"+string(rune('a'+i)), "{default}", pendingTasks())
		require.NoError(t, err)
		if i == 8 {
			_, err = startBulkAs(t, db, "limited", "{default}", limited)
			require.ErrorContains(t, err, "15 bulk changes are running", "the other five are for operators who are not limited to queues")
		}
	}
	_, err = startBulkAs(t, db, "last", "{default}", pendingTasks())
	require.ErrorContains(t, err, "20 bulk changes are running")
}

// A task whose change the database refuses counts as refused, and the other tasks are changed.
func TestBulkSkipsATaskThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 5} {
		t.Run(fmt.Sprint("batch of ", n), func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			ids := submitMany(t, db, n)
			bad := ids[n/2]
			db.Exec(t, `create function refuse() returns trigger language plpgsql as 'begin if new.id = ''`+bad.String()+`'' then raise exception using errcode = ''23514''; end if; return new; end'`)
			db.Exec(t, `create trigger refuse before insert on task_done for each row execute function refuse()`)
			b := startBulk(t, db, tasks.BulkCancel, pendingTasks())
			runBulks(t, db, 10)
			b = mustBulk(t, db, b.ID)
			require.NotNil(t, b.FinishedAt)
			require.Equal(t, []int{n - 1, 1}, []int{b.Changed, b.Refused})
			require.Contains(t, *b.LastError, bad.String())
			require.Equal(t, 1, db.Count(t, `select count(*) from task_live`))
		})
	}
}

// The error must be server_busy, and not that the filter matches too many tasks.
func TestCountMatchesIsBusyWhilePostgresDoesNotRespond(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.HoldLock(t, `lock table task_live`)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := db.Tasks.CountMatches(ctx, pendingTasks())
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err), "%v", err)
}

// Only an attacker who controls a function can write such a row.
func TestUnreadableBulkChangeDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	forge := func(id, filter string) error {
		_, err := db.Hot.Exec(t.Context(), `insert into bulk_changes (id, caller_id, caller_name, request_id, action, filter, reason, matched) values ($1, 0, 'x', 'x', 'cancel', $2, 'x', 5)`, id, filter)
		return err
	}
	require.ErrorContains(t, forge("00000000-0000-7000-8000-000000000001", `{"state":"pending","queue":"a\u0000b"}`), "unsupported Unicode escape sequence")
	forged := map[string]string{
		"00000000-0000-7000-8000-000000000002": `[]`,
		"00000000-0000-7000-8000-000000000003": `{"to":"garbage"}`,
		"00000000-0000-7000-8000-000000000004": `{"queues":[{}],"queue":5}`,
		"00000000-0000-7000-8000-000000000005": `{"caller_id":-5}`,
		"00000000-0000-7000-8000-000000000006": `{"from":"9999-12-31T23:59:59-01:00"}`,
		"00000000-0000-7000-8000-000000000007": `{"to":"0000-06-01T00:00:00Z"}`,
	}
	for id, filter := range forged {
		require.NoError(t, forge(id, filter))
	}
	submitMany(t, db, 3)
	b := startBulk(t, db, tasks.BulkCancel, pendingTasks())
	page, _, err := db.Tasks.Bulks(t.Context(), nil, task.ID{}, 10)
	require.NoError(t, err)
	require.Len(t, page, len(forged)+1)
	runBulks(t, db, 100)
	require.Equal(t, 3, mustBulk(t, db, b.ID).Changed)
	for id := range forged {
		forgedID, err := task.ParseID(id)
		require.NoError(t, err)
		require.Equal(t, "its filter cannot be read", *mustBulk(t, db, forgedID).StopReason, id)
		_, err = db.Tasks.StopBulk(t.Context(), forgedID, bulkOperator)
		require.NoError(t, err)
	}
}

// Only an attacker who controls a function can write such rows.
func TestBulkChangeWithCountersAtTheirLimitDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submitMany(t, db, 2, storetest.InQueue("forged"))
	forged := pendingTasks()
	forged.Queue = "forged"
	refusing := startBulk(t, db, tasks.BulkSucceeded, forged) // refused for all tasks: they are not held
	cancelling := startBulk(t, db, tasks.BulkCancel, forged)
	submitMany(t, db, 3)
	genuine := pendingTasks()
	genuine.Queue = task.DefaultQueue
	b := startBulk(t, db, tasks.BulkCancel, genuine)
	_, err := db.Hot.Exec(t.Context(), `update bulk_changes set looked = 2147483647, refused = 2147483647 where id = $1`, refusing.ID.String())
	require.NoError(t, err)
	_, err = db.Hot.Exec(t.Context(), `update bulk_changes set looked = 2147483647, changed = 2147483647 where id = $1`, cancelling.ID.String())
	require.NoError(t, err)

	runBulks(t, db, 1)
	for _, id := range []task.ID{refusing.ID, cancelling.ID, b.ID} {
		require.NotNil(t, mustBulk(t, db, id).FinishedAt)
	}
	require.Equal(t, 3, mustBulk(t, db, b.ID).Changed)

	for _, column := range []string{"looked", "changed", "refused"} {
		_, err = db.Hot.Exec(t.Context(), `update bulk_changes set `+column+` = -1 where id = $1`, b.ID.String())
		require.ErrorContains(t, err, "bulk_changes_values", column)
	}
	_, err = db.Hot.Exec(t.Context(), `insert into bulk_changes (id, caller_id, caller_name, request_id, action, filter, reason, matched) values (gen_random_uuid(), 0, 'x', 'x', 'cancel', '{}', 'x', -1)`)
	require.ErrorContains(t, err, "bulk_changes_values")
}
