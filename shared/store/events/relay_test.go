package events_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/events"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// finish claims n tasks and reports them as sent, in one flush.
func finish(t *testing.T, db *storetest.DB, n int) {
	t.Helper()
	claimed := db.ClaimAs(t, "app", n)
	require.Len(t, claimed, n)
	_, errs := db.Tasks.Report(store.Column(claimed, sent))
	require.NoError(t, errors.Join(errs...))
}

func sent(c tasks.Claimed) *tasks.Report {
	return storetest.Report(task.Report{TaskID: c.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentOK})
}

func TestFinalEventsAreWrittenForSubscribers(t *testing.T) {
	t.Parallel()
	var notified atomic.Int64
	db := storetest.Open(t, storetest.WithEvents(store.FinalEvents), func(c *stores.Config) { c.OnEvents = func() { notified.Add(1) } })
	db.MustAddEndpoint(t, 7, "https://seven.example")
	disabled := db.MustAddEndpoint(t, 8, "https://eight.example")
	_, err := db.Webhooks.DisableEndpoint(t.Context(), disabled.ID, nil, store.Operator{Name: "ops"})
	require.NoError(t, err)
	db.EnsureCaller(t, 9)
	_, err = db.Webhooks.SigningSecret(t.Context(), 9, "whsec_x")
	require.NoError(t, err)
	a, b := storetest.Submission(storetest.WithCallback), storetest.Submission(storetest.FromCaller(7))
	db.MustSubmit(t, a, b, storetest.Submission(), storetest.Submission(storetest.FromCaller(8)), storetest.Submission(storetest.FromCaller(9)))
	kinds, _ := db.Outbox(t)
	require.Empty(t, kinds, "only final events are written")
	finish(t, db, 5)
	kinds, ids := db.Outbox(t)
	require.Equal(t, []string{"task.succeeded", "task.succeeded"}, kinds, "one row for each caller of a flush")
	require.ElementsMatch(t, [][]task.ID{{a.ID}, {b.ID}}, ids, "tasks without an endpoint or callback are left out")
	require.EqualValues(t, 1, notified.Load())

	c := storetest.Submission(storetest.WithCallback)
	db.MustSubmit(t, c)
	_, err = db.Tasks.Cancel(t.Context(), c.ID, nil)
	require.NoError(t, err)
	kinds, _ = db.Outbox(t)
	require.Equal(t, []string{"task.succeeded", "task.succeeded", "task.failed"}, kinds)
	require.EqualValues(t, 2, notified.Load())
}

// A caller that subscribes to few kinds of events must not fill the stream of all callers with other kinds.
func TestEventWithoutEndpointIsNotWritten(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.WithEvents(store.AllEvents))
	db.MustAddEndpoint(t, 7, "https://seven.example", "task.scheduled")
	db.MustAddEndpoint(t, 8, "https://eight.example", "task.succeeded", "task.processing")
	greedy, modest := storetest.Submission(storetest.FromCaller(7)), storetest.Submission(storetest.FromCaller(8))
	later := storetest.Submission(storetest.FromCaller(7), func(s *tasks.Submission) { s.SendAt = time.Now().Add(time.Hour) })
	db.MustSubmit(t, greedy, modest, later)
	finish(t, db, 2)
	kinds, ids := db.Outbox(t)
	require.Equal(t, []string{"task.scheduled", "task.processing", "task.succeeded"}, kinds)
	require.Equal(t, [][]task.ID{{later.ID}, {modest.ID}, {modest.ID}}, ids)
}

func TestAllEventsModeWritesEveryStep(t *testing.T) {
	t.Parallel()
	storetest.WithAndWithoutPooler(t, func(t *testing.T, db *storetest.DB) {
		s := storetest.Submission(storetest.WithCallback)
		db.MustSubmit(t, s, storetest.Submission())
		finish(t, db, 2)
		kinds, ids := db.Outbox(t)
		require.Equal(t, []string{"task.pending", "task.processing", "task.succeeded"}, kinds)
		require.Equal(t, slices.Repeat([][]task.ID{{s.ID}}, 3), ids)
	}, storetest.WithEvents(store.AllEvents))
}

func TestNoEventsModeWritesNothing(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.WithEvents(store.NoEvents))
	db.MustSubmit(t, storetest.Submission(storetest.WithCallback))
	finish(t, db, 1)
	kinds, _ := db.Outbox(t)
	require.Empty(t, kinds)
}

func TestUnavailableEventsStayAndRefusedBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.WithEvents(store.FinalEvents))
	first := storetest.Submission(storetest.WithCallback, func(s *tasks.Submission) { s.Source, s.Metadata = "system_a", []byte(`{"order":1}`) })
	db.MustSubmit(t, first, storetest.Submission(storetest.WithCallback), storetest.Submission(storetest.WithCallback))
	finish(t, db, 3)
	unavailable := db.RelayEvents(t, func(int) msg.Outcome { return msg.Unavailable })
	require.Len(t, unavailable, 3)
	for _, e := range unavailable {
		require.Equal(t, "task.succeeded", e.Kind)
		require.NotNil(t, e.SentAt)
		if e.Subject == first.ID {
			require.Equal(t, "system_a", e.Source)
			require.JSONEq(t, `{"order":1}`, string(e.Metadata))
		}
	}
	mixed := db.RelayEvents(t, func(i int) msg.Outcome { return []msg.Outcome{msg.Accepted, msg.Unavailable, msg.Refused}[i] })
	require.Equal(t, unavailable, mixed, "the same events with the same ids")
	rest := db.RelayEvents(t, func(int) msg.Outcome { return msg.Accepted })
	require.Len(t, rest, 1)
	require.Equal(t, mixed[1].ID(), rest[0].ID())
	require.Empty(t, db.RelayEvents(t, func(int) msg.Outcome { return msg.Accepted }))
	deadLetters, more, err := db.Admin.DeadLetters(t.Context(), 0, 10)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, deadLetters, 1)
	require.Equal(t, mixed[2].ID(), deadLetters[0].EventID)
	require.Equal(t, "because", deadLetters[0].Reason)

	require.NoError(t, db.Admin.DismissDeadLetter(t.Context(), deadLetters[0].ID, store.Operator{Name: "ops", Reason: "dealt with"}))
	require.Equal(t, task.CodeNotFound, task.CodeOf(db.Admin.DismissDeadLetter(t.Context(), deadLetters[0].ID, store.Operator{Name: "ops"})))
	require.Equal(t, 1, db.Count(t, `select count(*) from operator_actions where action = 'dead_letter.dismiss' and before is not null`))
}

func TestLaterEventsHaveHigherNumbersAndOwnOutcome(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.WithEvents(store.FinalEvents))
	s := storetest.Submission(storetest.WithCallback, func(s *tasks.Submission) { s.MaxRetries = 0 })
	db.MustSubmit(t, s)
	claimed := db.ClaimAs(t, "app", 1)[0]
	r := task.Report{TaskID: s.ID, AppID: "app", ClaimID: claimed.ClaimID, Outcome: task.SentFailed, Message: "no signal", ErrorCode: "E7"}
	require.Equal(t, task.Applied, db.MustReport(t, r).Verdict)
	_, err := db.Tasks.RetryFailed(t.Context(), s.ID, store.Operator{Name: "ops"})
	require.NoError(t, err)
	finish(t, db, 1)
	published := db.RelayEvents(t, func(int) msg.Outcome { return msg.Accepted })
	require.Len(t, published, 2)
	require.Equal(t, "task.failed", published[0].Kind)
	require.Equal(t, task.Rejected, published[0].Reason)
	require.Empty(t, published[0].Result, "the task has another outcome now")
	require.Equal(t, "task.succeeded", published[1].Kind)
	require.Greater(t, published[1].Seq, published[0].Seq)
}

// However many events of one caller are waiting, the first events of every other caller are among the first that are
// published. The events of each caller keep their order.
func TestEventsOfOneCallerDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	add := func(caller, rows, events int) {
		db.Exec(t, `insert into event_outbox (kind, caller_id, ids)
			select 'task.failed', $1, array(select gen_random_uuid() from generate_series(1, $3::integer)) from generate_series(1, $2::integer)`, caller, rows, events)
	}
	add(7, 40, 100)
	add(8, 3, 1)
	add(9, 30, 10)
	var published []events.Due
	relay := func() store.Relayed {
		relayed, err := db.Events.Relay(t.Context(), "", 300, func(_ context.Context, due []events.Due) ([]msg.Result, error) {
			published = due
			return slices.Repeat([]msg.Result{storetest.Accepted}, len(due)), nil
		})
		require.NoError(t, err)
		return relayed
	}
	callerOf := map[int64]int64{} // by id of the row
	var id, caller int64
	require.NoError(t, store.QueryEach(t.Context(), db.Owner, `select id, caller_id from event_outbox`, nil, []any{&id, &caller}, func() {
		callerOf[id] = caller
	}))
	require.True(t, relay().More)
	counts, last := map[int64]int{}, map[int64]int64{}
	for i, e := range published {
		caller := callerOf[e.Seq]
		counts[caller]++
		require.GreaterOrEqual(t, e.Seq, last[caller], "in their order")
		last[caller] = e.Seq
		if i == 0 {
			require.EqualValues(t, 8, caller, "the events of the smallest rows are first")
		}
	}
	require.Equal(t, map[int64]int{7: 100, 8: 3, 9: 100}, counts)
	for relay().More {
	}
	require.Zero(t, db.Count(t, `select count(*) from event_outbox`))

	for caller := range 50 {
		add(100+caller, 1, 100)
	}
	total := 0
	for more := true; more; total += len(published) {
		published = nil
		more = relay().More
		require.LessOrEqual(t, len(published), 2*300+100, "a batch has only some of the callers")
	}
	require.Equal(t, 5000, total)
}

// A batch keeps rows locked and their content in memory, so its bytes are limited too. A row whose events exceed the limit
// is published in parts.
func TestBatchOfLargeEventsIsLimitedInBytes(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	// This raises the statement_timeout of new connections: the statements are slow on slow machines.
	db.Exec(t, `do $$ begin execute format('alter role `+sandbox.Roles.Hot+` in database %I set statement_timeout = %L', current_database(), '1min'); end $$`)
	add := func(caller, events int, metadata string) {
		db.Exec(t, `
with new as (
    insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, metadata)
    select gen_random_uuid(), $1, 'default', 5, 3, 0, '13800138000', 'x', $3::text::json from generate_series(1, $2::integer)
    returning id
)
insert into event_outbox (kind, caller_id, ids) select 'task.failed', $1, array_agg(id) from new`, caller, events, metadata)
	}
	large := `{"m":"` + strings.Repeat("x", 4000) + `"}`
	add(7, 1500, large)
	add(7, 1000, large)
	add(8, 10, `{"small":true}`)
	published, batches, last, unavailable := map[task.ID]bool{}, 0, int64(0), task.ID{}
	for more := true; more; batches++ {
		relayed, err := db.Events.Relay(t.Context(), "", 4000, func(_ context.Context, due []events.Due) ([]msg.Result, error) {
			results, bytes, small := make([]msg.Result, len(due)), 0, 0
			for i, e := range due {
				bytes += len(e.Metadata)
				switch {
				case string(e.Metadata) == `{"small":true}`:
					small++
				case batches == 1 && i == 0:
					unavailable, results[i] = e.Subject, msg.Result{Outcome: msg.Unavailable, Scope: msg.OneMessage, Reason: "because"}
					continue
				case e.Subject != unavailable:
					require.GreaterOrEqual(t, e.Seq, last, "in their order")
					last = e.Seq
				}
				require.False(t, published[e.Subject])
				published[e.Subject], results[i] = true, storetest.Accepted
			}
			require.LessOrEqual(t, bytes, 4<<20+len(large))
			require.Equal(t, batches == 0, small == 10, "another caller's events are in the first batch")
			return results, nil
		})
		require.NoError(t, err)
		more = relayed.More
		db.Exec(t, `update event_outbox set next_at = '-infinity'`)
	}
	require.Len(t, published, 2510)
	require.Zero(t, db.Count(t, `select count(*) from event_outbox`))
	require.Equal(t, 3, batches)
}

func TestRelaySkipsTheEventsOfOneStream(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into event_outbox (kind, ids) values ('task.succeeded', array[gen_random_uuid()]), ('message.saved', array[gen_random_uuid()])`)
	relay := func(skipStream string) (kinds []string, more bool) {
		relayed, err := db.Events.Relay(t.Context(), skipStream, 10, func(_ context.Context, due []events.Due) (results []msg.Result, _ error) {
			for _, e := range due {
				kinds, results = append(kinds, e.Kind), append(results, storetest.Accepted)
			}
			return results, nil
		})
		require.NoError(t, err)
		return kinds, relayed.More
	}
	for _, want := range []struct {
		skipStream string
		kinds      []string
		more       bool
	}{
		{"EVENTS", []string{"message.saved"}, true}, {"EVENTS", nil, true}, {"", []string{"task.succeeded"}, false}, {"", nil, false},
	} {
		kinds, more := relay(want.skipStream)
		require.Equal(t, want.kinds, kinds)
		require.Equal(t, want.more, more)
	}
}

// whileWaiting runs the statement lock, which locks a row, and starts do. While do waits for the row, whileWaiting calls meanwhile.
// Then it releases the row and returns the error of do.
func whileWaiting(t *testing.T, db *storetest.DB, lock string, id any, do func() error, meanwhile func()) error {
	t.Helper()
	release := db.HoldLock(t, lock, id)
	done := make(chan error, 1)
	go func() { done <- storetest.RetryBusy(do) }()
	db.AwaitLockWait(t)
	meanwhile()
	release()
	return <-done
}

func TestEndpointAddedDuringReportGetsTheEvent(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.WithEvents(store.FinalEvents))
	db.MustSubmit(t, storetest.Submission(storetest.FromCaller(7)), storetest.Submission(storetest.FromCaller(7)))
	claimed := db.ClaimAs(t, "app", 2)
	err := whileWaiting(t, db, `select from task_live where id = $1 for update`, claimed[1].ID,
		func() error { _, errs := db.Tasks.Report(store.Column(claimed, sent)); return errors.Join(errs...) },
		func() { db.MustAddEndpoint(t, 7, "https://seven.example") })
	require.NoError(t, err)
	_, ids := db.Outbox(t) // after a long wait the reports are committed one by one, the other report perhaps before the endpoint was added
	require.Contains(t, slices.Concat(ids...), claimed[1].ID)
}

func TestEndpointAddedDuringSubmissionGetsTheEvent(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.WithEvents(store.FinalEvents))
	first := db.MustSubscribe(t, storetest.Booking(1, `{"thing1":{"value":"Tea"}}`))
	require.Equal(t, task.Pending, db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed, ShouldRetry: true}).State)
	err := whileWaiting(t, db, `select from subscribe_message_logs where id = $1 for update`, first.ID,
		func() error {
			_, err := db.Subscribe.Submit(t.Context(), storetest.Booking(1, `{"thing1":{"value":"Coffee"}}`))
			return err
		},
		func() { db.MustAddEndpoint(t, 7, "https://seven.example") })
	require.NoError(t, err)
	kinds, ids := db.Outbox(t)
	require.Equal(t, []string{"task.failed"}, kinds)
	require.Equal(t, [][]task.ID{{first.TaskID}}, ids)
}

func TestSweepWithLostResponseStillNotifies(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	var notified, failures int
	db := storetest.OpenAt(t, proxy.URL(), storetest.WithEvents(store.FinalEvents), func(c *stores.Config) {
		c.OnEvents, c.OnFailed = func() { notified++ }, func() { failures++ }
	})
	db.MustSubmit(t, storetest.Submission(storetest.WithCallback, func(s *tasks.Submission) { s.MaxRetries = 0 }))
	db.Claim(t)
	db.ExpireLeases(t)
	require.Zero(t, notified)
	fired := proxy.LoseResponse(sandbox.Containing("insert into task_done"))
	_, err := db.Tasks.Sweep(t.Context(), 10)
	<-fired
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err))
	require.Equal(t, []int{1, 1}, []int{notified, failures})
	require.Equal(t, 1, db.Count(t, `select count(*) from event_outbox`))
	swept, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, swept.Rows, "no task is left")
}

func TestRolledBackSweepDoesNotNotify(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.WithEvents(store.AllEvents), func(c *stores.Config) { c.OnFailed = func() { t.Error("notified of failures") } })
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(func(s *tasks.Submission) { s.MaxRetries = 0 }))
	require.Len(t, db.Claim(t), 2)
	db.ExpireLeases(t)
	db.OnEvents = func() { t.Error("notified of events") }
	db.Exec(t, `revoke insert on report_logs from sendonce_hot`)
	swept, err := db.Tasks.Sweep(t.Context(), 10)
	require.ErrorContains(t, err, "permission denied")
	require.Empty(t, swept.Pending)
}

func TestCancelledClaimStillNotifies(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	db := storetest.OpenAt(t, proxy.URL(), storetest.WithEvents(store.AllEvents))
	db.MustSubmit(t, storetest.Submission(storetest.WithCallback))
	notified := make(chan bool, 100)
	db.OnEvents = func() { notified <- true }
	ctx, cancel := context.WithCancel(t.Context())
	proxy.LoseResponse(func(sql string) bool {
		found := sandbox.Containing("for update skip locked")(sql)
		if found {
			cancel()
		}
		return found
	})
	// Limit is above 10: a claim of at most 10 tasks shares its statement with others, and is not cancelled.
	_, _, err := db.Tasks.Claim(ctx, tasks.ClaimRequest{Queue: task.DefaultQueue, AppID: "app", Limit: 11, Lease: time.Minute, Request: []byte(`{}`)})
	require.Error(t, err)
	require.NotEmpty(t, notified)
}
