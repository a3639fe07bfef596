package tasks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// reportAsync makes a report in a goroutine. If the report fails, the channel is closed without a result.
func reportAsync(db *storetest.DB, r task.Report) <-chan tasks.Reported {
	returned := make(chan tasks.Reported, 1)
	go func() {
		defer close(returned)
		if out, err := db.Report(r); err == nil {
			returned <- out
		}
	}()
	return returned
}

func TestReportWithLostResponseIsNotAppliedToNextClaim(t *testing.T) {
	t.Parallel()
	for name, withID := range map[string]bool{"with a claim_id": true, "with the app only": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := sandbox.NewDatabase(t)
			proxy := sandbox.NewProxy(t, url)
			db, direct := storetest.OpenAt(t, proxy.URL()), storetest.OpenAt(t, url)
			s := storetest.Submission()
			db.MustSubmit(t, s)
			r := task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentFailed, ShouldRetry: true}
			if first := direct.ClaimAs(t, "app", 1)[0]; withID {
				r.ClaimID = first.ClaimID
			}
			lost := proxy.LoseResponse(sandbox.Containing("update task_live"))
			returned := reportAsync(db, r)
			<-lost
			second := direct.ClaimAs(t, "app", 1)
			require.Equal(t, task.Applied, (<-returned).Verdict)
			stored := direct.MustTask(t, s.ID)
			require.Equal(t, int16(1), stored.RetryCount)
			if len(second) == 1 {
				require.Equal(t, task.Processing, stored.State, "the second claim has not ended")
				require.Equal(t, second[0].ClaimID, stored.ClaimID)
			}
		})
	}
}

// newFailover calls prepare with a new database, and copies the database. It returns the URL of the
// database, a proxy to it, and failOver, which replaces the database by the copy: what was committed
// after prepare is lost, and sequences return the same numbers again. After failOver the proxy
// refuses connections until it is restored.
func newFailover(t *testing.T, prepare func(*storetest.DB)) (url string, proxy *sandbox.Proxy, failOver func()) {
	t.Helper()
	url = sandbox.NewDatabase(t)
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	before := storetest.OpenAt(t, url)
	prepare(before)
	before.Close()
	serverConfig := config.Copy()
	serverConfig.Database = "postgres"
	server, err := pgx.ConnectConfig(t.Context(), serverConfig)
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close(context.Background()) })
	run := func(sql string) {
		_, err := server.Exec(context.Background(), strings.ReplaceAll(sql, "$db", config.Database))
		require.NoError(t, err)
	}
	run("create database $db_standby template $db")
	proxy = sandbox.NewProxy(t, url)
	return url, proxy, func() {
		proxy.Cut()
		run("drop database $db with (force)")
		run("alter database $db_standby rename to $db")
	}
}

// A transaction that no standby has is lost in a failover, and the new primary gives its
// transaction id to another transaction. So even if this id is committed, the report may be lost.
// In this test the copy is on the same server, where the id of the lost transaction is committed.
func TestReportLostInFailoverIsAppliedAgain(t *testing.T) {
	t.Parallel()
	s := storetest.Submission()
	var claim tasks.Claimed
	url, proxy, failOver := newFailover(t, func(db *storetest.DB) {
		db.MustSubmit(t, s)
		claim = db.ClaimAs(t, "app", 1)[0]
	})
	db := storetest.OpenAt(t, proxy.URL())
	lost := proxy.LoseResponse(sandbox.Containing("insert into report_logs"))
	returned := reportAsync(db, task.Report{TaskID: s.ID, AppID: "app", ClaimID: claim.ClaimID, Outcome: task.SentOK})
	<-lost
	failOver()
	proxy.Restore()
	require.Equal(t, task.Applied, (<-returned).Verdict)
	require.Equal(t, task.Succeeded, storetest.OpenAt(t, url).MustTask(t, s.ID).State, "the result that was returned is stored")
}

func TestClaimLostInFailoverTakesNoTaskOfAnotherApp(t *testing.T) {
	t.Parallel()
	url, proxy, failOver := newFailover(t, func(db *storetest.DB) { db.MustSubmit(t, storetest.Submission(), storetest.Submission()) })
	db := storetest.OpenAt(t, proxy.URL())
	lost := proxy.LoseResponse(sandbox.Containing("for update skip locked"))
	claimed := make(chan []tasks.Claimed, 1)
	go func() {
		defer close(claimed)
		claimed <- db.ClaimAs(t, "app", 1)
	}()
	<-lost
	failOver()
	others := storetest.OpenAt(t, url).ClaimAs(t, "other", 1)
	proxy.Restore()
	ours := <-claimed
	require.Len(t, ours, 1)
	require.NotEqual(t, others[0].ID, ours[0].ID, "two apps must not get the same task")
	require.NotEqual(t, others[0].ClaimID, ours[0].ClaimID)
}

func TestLostCommitIsResolvedDespiteLostConnection(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	db := storetest.OpenAt(t, proxy.URL())
	db.MustSubmit(t, storetest.Submission())
	lost := proxy.LoseResponse(sandbox.Containing("insert into tasks"))
	s := storetest.Submission()
	returned := make(chan error, 1)
	go func() {
		_, errs := db.Tasks.Submit([]*tasks.Submission{s})
		returned <- errs[0]
	}()
	<-lost
	proxy.Cut()
	direct := storetest.ConnectAsOwner(t, url)
	require.Eventually(t, func() bool { // the server has ended the sessions, so the store's connections are broken
		var n int
		err := direct.QueryRow(t.Context(), `select count(*) from pg_stat_activity where usename = 'sendonce_hot' and datname = current_database()`).Scan(&n)
		return err == nil && n == 0
	}, time.Minute, time.Millisecond)
	proxy.Restore()
	require.NoError(t, <-returned)
}

// A call whose commit may have succeeded waits to find out. A call that started no transaction must
// fail at once.
func TestPoolerWithoutServerFailsAtOnce(t *testing.T) {
	t.Parallel()
	sandbox.OnlyWithFaults(t)
	config, err := pgx.ParseConfig(sandbox.NewDatabase(t))
	require.NoError(t, err)
	proxy := sandbox.NewProxy(t, config.ConnString())
	db := storetest.OpenAt(t, sandbox.NewPgBouncerTo(t, proxy.URL()).URL(config.Database), func(c *stores.Config) { c.Pooler = true })
	s := storetest.Submission()
	db.MustSubmit(t, s)
	require.Len(t, db.ClaimAs(t, "app", 1), 1)
	proxy.Cut()
	require.Eventually(t, func() bool { // PgBouncer has no server connection left
		_, err := db.Tasks.ByID(t.Context(), s.ID)
		return task.CodeOf(err) == task.CodeServerBusy
	}, time.Minute, time.Millisecond)
	began := time.Now()
	_, errs := db.Tasks.Submit([]*tasks.Submission{storetest.Submission()})
	require.Equal(t, task.CodeServerBusy, task.CodeOf(errs[0]))
	_, err = db.Report(task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentOK})
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err))
	require.Less(t, time.Since(began), 15*time.Second)
	proxy.Restore()
	require.Eventually(t, func() bool {
		_, errs := db.Tasks.Submit([]*tasks.Submission{storetest.Submission()})
		return errs[0] == nil
	}, time.Minute, 10*time.Millisecond, "it recovers by itself")
}

func TestErrorsAfterCommitFailOnlyReplays(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{"a cancelled statement": "57014", "a lock timeout": "55P03", "bad data": "22000"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "hello")))
			db.Exec(t, fmt.Sprintf(`create function boom() returns trigger language plpgsql as $$ begin
				if new.response_data ->> 'replayed' = 'true' then raise exception 'x' using errcode = '%s'; end if; return new; end $$;
				create trigger boom before insert on receive_logs for each row execute function boom()`, code))
			fresh := storetest.Submission()
			outs, errs := db.Tasks.Submit([]*tasks.Submission{fresh, storetest.Submission(storetest.Keyed("k", "hello"))})
			require.NoError(t, errs[0], "its task is committed")
			require.Equal(t, fresh.ID, outs[0].ID)
			require.Error(t, errs[1])
			require.Equal(t, 2, db.Count(t, `select count(*) from tasks`))
		})
	}
}

func TestFirstOfEqualKeysInABatchIsAccepted(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	subs := make([]*tasks.Submission, 100)
	for i := range subs {
		subs[i] = storetest.Submission(storetest.Keyed(fmt.Sprint("k", i%50), fmt.Sprint("body", i)))
	}
	for i, out := range db.MustSubmit(t, subs...) {
		require.Equal(t, i >= 50, out.Refused != nil, i)
	}
}

func TestKeysInFlightDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	stuck := make([]*tasks.Submission, 600)
	keys := make([]task.Hash, len(stuck))
	for i := range stuck {
		stuck[i] = storetest.Submission(storetest.Keyed(fmt.Sprint(i), "x"))
		keys[i] = *stuck[i].Key
	}
	tx, err := db.Owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `insert into submission_keys select k, k, k from unnest($1::uuid[]) k`, keys)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	returned := make(chan []error, 1)
	go func() {
		_, errs := db.Tasks.Submit(stuck)
		returned <- errs
	}()
	for range 20 {
		s := storetest.Submission()
		require.NoError(t, storetest.RetryBusy(func() error {
			_, errs := db.Tasks.Submit([]*tasks.Submission{s})
			return errs[0]
		}))
	}
	select {
	case <-returned:
		require.Fail(t, "the stuck calls returned before the others: this test proves nothing")
	default:
	}
	require.NoError(t, tx.Rollback(t.Context())) // the keys are no longer in flight
	accepted, unknown := 0, 0
	for _, err := range <-returned {
		switch {
		case err == nil:
			accepted++
		case task.CodeOf(err) == task.CodeServerBusy:
			unknown++ // the task may have been stored
		default:
			require.Equal(t, task.CodeKeyInFlight, task.CodeOf(err))
		}
	}
	stored := db.Count(t, `select count(*) from tasks`) - 20
	require.GreaterOrEqual(t, stored, accepted)
	require.LessOrEqual(t, stored, accepted+unknown)
}

func TestLockedDefaultContentIsServerBusy(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into default_sms_data (phone_number, content) values ('13800138000', 'hi')`)
	db.HoldLock(t, `select * from default_sms_data for update`)
	_, errs := db.Tasks.Submit([]*tasks.Submission{storetest.Submission(storetest.NoContent)})
	require.Equal(t, task.CodeServerBusy, task.CodeOf(errs[0]))
}

// If refused submissions waited, a caller that repeats them could delay the submissions of all callers.
func TestRefusedSubmissionOfDefaultContentWaitsForNoLock(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into default_sms_data (phone_number, content) values ('13800138000', 'hi'), ('13900139000', 'hi')`)
	db.MustSubmit(t, storetest.Submission(storetest.NoContent))
	db.HoldLock(t, `select * from default_sms_data for update`)
	outs, errs := db.Tasks.Submit([]*tasks.Submission{storetest.Submission(storetest.NoContent)})
	require.NoError(t, errs[0])
	require.ErrorContains(t, outs[0].Refused, "already")
	refused := storetest.Submission(storetest.NoContent, func(s *tasks.Submission) {
		s.Phone, s.Key, s.Refused = "13900139000", new(task.KeyHash(0, "sms", "k")), task.Refuse(task.CodeForbidden, "this queue is forbidden")
	})
	outs, errs = db.Tasks.Submit([]*tasks.Submission{refused})
	require.NoError(t, errs[0])
	require.ErrorContains(t, outs[0].Refused, "this queue is forbidden")
}

func TestDefaultContentThatIsResetDuringASubmissionIsBusy(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into default_sms_data (phone_number, content, is_sent) values ('13800138000', 'hi', true), ('13900139000', 'hi', false)`)
	release := db.HoldLock(t, `select * from default_sms_data where phone_number = '13900139000' for update`)
	returned := make(chan []tasks.Submitted, 1)
	go func() {
		outs, _ := db.Tasks.Submit([]*tasks.Submission{
			storetest.Submission(storetest.NoContent), storetest.Submission(storetest.NoContent, func(s *tasks.Submission) { s.Phone = "13900139000" }),
		})
		returned <- outs
	}()
	db.AwaitLockWait(t)
	db.Exec(t, `update default_sms_data set is_sent = false where phone_number = '13800138000'`)
	release()
	outs := <-returned
	require.Equal(t, task.CodeServerBusy, task.CodeOf(outs[0].Refused))
	require.Nil(t, outs[1].Refused, "the other default content was locked")
}

func TestLockedTasksFailOnlyTheirReports(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submitMany(t, db, 9)
	claimed := db.ClaimAs(t, "app", 9)
	locked := store.Column(claimed[:8], func(c tasks.Claimed) task.ID { return c.ID })
	db.HoldLock(t, `select from task_live where id = any($1) for update`, locked)
	outs, errs := db.Tasks.Report(store.Column(claimed, func(c tasks.Claimed) *tasks.Report {
		return storetest.Report(task.Report{TaskID: c.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentOK})
	}))
	for _, err := range errs[:8] {
		require.Equal(t, task.CodeServerBusy, task.CodeOf(err))
	}
	require.NoError(t, errs[8])
	require.Equal(t, task.Applied, outs[8].Verdict)
}

func TestReportDuringManualRetryFindsItsTask(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Submission(func(s *tasks.Submission) { s.OnUnknown = task.Fail })
	db.MustSubmit(t, s)
	c := db.ClaimAs(t, "app", 1)[0]
	db.MustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentUnknown})
	commitRetry := db.HoldLock(t, `with d as (delete from task_done where id = $1 returning *)
		insert into task_live (id, state, priority, max_retries, on_unknown, queue, claim_id, app_id, ended)
		select id, 1, 5, 3, 0, 'default', claim_id, app_id, ended from d`, s.ID)
	returned := make(chan tasks.Reported, 1)
	go func() {
		defer close(returned)
		_ = storetest.RetryBusy(func() error {
			out, err := db.Report(task.Report{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentOK})
			if err == nil {
				returned <- out
			}
			return err
		})
	}()
	db.AwaitLockWait(t)
	commitRetry()
	require.True(t, (<-returned).Found)
}

func TestClaimReturnsPendingByQueue(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submitMany(t, db, 4)
	submitMany(t, db, 10, func(s *tasks.Submission) { s.SendAt = time.Now().Add(time.Hour) })
	db.Exec(t, `update task_live set due_at = now() - interval '1 second' where state = 0`)
	claimed, pending, err := db.Tasks.Claim(t.Context(), claimRequest("a", 0, 8))
	require.NoError(t, err)
	require.Len(t, claimed, 8)
	require.Equal(t, tasks.PendingByQueue{task.DefaultQueue: 6}, pending)
}

func TestSubscribeSubmitWithLostResponseIsAppliedOnce(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	db, direct := storetest.OpenAt(t, proxy.URL()), storetest.OpenAt(t, url)
	record := func() subscribe.Submitted {
		s := storetest.Booking(1, `{"a":1}`)
		s.Queue, s.AppID, s.Lease = task.RecordedQueue, "shop", time.Minute
		lost := proxy.LoseResponse(sandbox.Containing("insert into subscribe_message_sends"))
		out := db.MustSubscribe(t, s)
		<-lost
		require.Equal(t, s.TaskID, out.TaskID)
		require.False(t, out.Skipped)
		require.Equal(t, task.Processing, out.State)
		require.WithinDuration(t, time.Now().Add(time.Minute), out.LeaseUntil, 10*time.Second)
		return out
	}
	var rows []int64
	for range 2 { // a new row, and the same row again
		out := record()
		rows = append(rows, out.ID)
		report := task.Report{TaskID: out.TaskID, AppID: "shop", CallerID: 7, ClaimID: out.ClaimID, Outcome: task.SentFailed}
		require.Equal(t, task.Applied, direct.MustReport(t, report).Verdict, "the caller may report its claim")
	}
	require.Equal(t, rows[0], rows[1])
	require.Equal(t, 2, direct.Count(t, `select count(*) from tasks`))
	require.Equal(t, 2, direct.Count(t, `select count(*) from subscribe_message_sends`))
}

// Without the release, no sender would receive the tasks until their leases end.
func TestTasksOfLostClaimAreReleased(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	pending := make(chan int, 1)
	db, direct := storetest.OpenAt(t, proxy.URL(), func(c *stores.Config) { c.OnPending = func(_ string, n int) { pending <- n } }), storetest.OpenAt(t, url)
	claim := func(ctx context.Context) error {
		_, _, err := db.Tasks.Claim(ctx, tasks.ClaimRequest{Queue: task.DefaultQueue, AppID: "app", Limit: 11, Lease: time.Hour, Request: []byte(`{}`), WokenUp: true})
		return err
	}
	require.NoError(t, claim(t.Context())) // prepares the statement, so that the next claim is sent at once
	ids := submitMany(t, direct, 12)
	release := direct.HoldLock(t, `lock table task_live in share mode`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- claim(ctx) }()
	direct.AwaitLockWait(t)
	proxy.Stall()
	release()
	claimedRows := func() int { return direct.Count(t, `select count(*) from task_live where state = 2`) }
	require.Eventually(t, func() bool { return claimedRows() == 11 }, time.Minute, time.Millisecond, "the claim is committed")
	cancel()
	require.Error(t, <-failed)
	// A later claim with the same id, as after a failover, and a task that was marked are not released.
	direct.Exec(t, `update task_live set updated_at = now() + interval '1 minute' where id = $1`, ids[0])
	direct.Exec(t, `update task_live set sending_at = now() where id = $1`, ids[1])
	proxy.Resume()
	require.Equal(t, 9, <-pending)
	require.Equal(t, 2, claimedRows())
	for _, c := range direct.ClaimAs(t, "other", 10) {
		require.Zero(t, c.RetryCount, "no retry is used up")
	}
}
