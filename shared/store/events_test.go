package store

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// finish claims and reports everything as sent, in one flush.
func (db *DB) finish(t *testing.T, n int) {
	t.Helper()
	claimed := db.mustClaim(t, "app", n)
	require.Len(t, claimed, n)
	reports := make([]*Report, n)
	for i, c := range claimed {
		reports[i] = &Report{Report: task.Report{TaskID: c.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentOK}, Request: []byte(`{}`)}
	}
	_, errs := db.Report(reports)
	for _, err := range errs {
		require.NoError(t, err)
	}
}

func TestAnOutcomeIsToldOfTasksThatSomebodyListensTo(t *testing.T) {
	t.Parallel()
	var told atomic.Int64
	db := openAt(t, sandbox.NewDatabase(t), telling(FinalEvents), func(c *Config) { c.OnEvents = func() { told.Add(1) } })
	db.mustAddEndpoint(t, 7, "https://seven.example")
	silent := db.mustAddEndpoint(t, 8, "https://eight.example")
	_, err := db.DisableEndpoint(t.Context(), silent.ID, nil, Operator{Name: "ops"})
	require.NoError(t, err)
	db.mustHaveCaller(t, 9)
	_, err = db.SigningSecret(t.Context(), 9, "whsec_x")
	require.NoError(t, err)
	a, b := message(withCallback), message(fromCaller(7))
	db.mustSubmit(t, a, b, message(), message(fromCaller(8)), message(fromCaller(9)))
	kinds, _ := db.outbox(t)
	require.Empty(t, kinds, "only outcomes are told")
	db.finish(t, 5)
	kinds, ids := db.outbox(t)
	require.Equal(t, []string{"task.succeeded", "task.succeeded"}, kinds, "one row for each caller of a flush")
	require.ElementsMatch(t, [][]task.ID{{a.ID}, {b.ID}}, ids, "nobody hears of the others")
	require.EqualValues(t, 1, told.Load())

	c := message(withCallback)
	db.mustSubmit(t, c)
	_, err = db.Cancel(t.Context(), c.ID, nil)
	require.NoError(t, err)
	kinds, _ = db.outbox(t)
	require.Equal(t, []string{"task.succeeded", "task.succeeded", "task.failed"}, kinds)
	require.EqualValues(t, 2, told.Load())
}

// A caller that asks for few kinds of events would fill the stream of all with the
// others.
func TestAnEventThatNoEndpointAsksForIsNotWritten(t *testing.T) {
	t.Parallel()
	db := openAt(t, sandbox.NewDatabase(t), telling(AllEvents))
	db.mustAddEndpoint(t, 7, "https://seven.example", "task.scheduled")
	db.mustAddEndpoint(t, 8, "https://eight.example", "task.succeeded", "task.processing")
	greedy, modest := message(fromCaller(7)), message(fromCaller(8))
	later := message(fromCaller(7), func(s *Submission) { s.SendAt = time.Now().Add(time.Hour) })
	db.mustSubmit(t, greedy, modest, later)
	db.finish(t, 2)
	kinds, ids := db.outbox(t)
	require.Equal(t, []string{"task.scheduled", "task.processing", "task.succeeded"}, kinds)
	require.Equal(t, [][]task.ID{{later.ID}, {modest.ID}, {modest.ID}}, ids)
}

func TestEveryStepOfATaskIsToldWhenAllAreWanted(t *testing.T) {
	t.Parallel()
	for name, pooler := range map[string]bool{"directly": false, "as behind a pooler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openAt(t, sandbox.NewDatabase(t), telling(AllEvents), func(c *Config) { c.Pooler = pooler })
			s := message(withCallback)
			db.mustSubmit(t, s, message())
			db.finish(t, 2)
			kinds, ids := db.outbox(t)
			require.Equal(t, []string{"task.pending", "task.processing", "task.succeeded"}, kinds)
			for _, of := range ids {
				require.Equal(t, []task.ID{s.ID}, of)
			}
		})
	}
}

func TestNothingIsToldWhenNoEventsAreWanted(t *testing.T) {
	t.Parallel()
	db := openAt(t, sandbox.NewDatabase(t), telling(NoEvents))
	db.mustSubmit(t, message(withCallback))
	db.finish(t, 1)
	kinds, _ := db.outbox(t)
	require.Empty(t, kinds)
}

func TestEventsStayUntilAStreamHasThem(t *testing.T) {
	t.Parallel()
	db := openAt(t, sandbox.NewDatabase(t), telling(FinalEvents))
	first := message(withCallback, func(s *Submission) { s.Source, s.Metadata = "system_a", []byte(`{"order":1}`) })
	db.mustSubmit(t, first, message(withCallback), message(withCallback))
	db.finish(t, 3)
	away := db.relayEvents(t, func(int) msg.Outcome { return msg.Away })
	require.Len(t, away, 3)
	for _, e := range away {
		require.Equal(t, "task.succeeded", e.Kind)
		require.NotNil(t, e.SentAt)
		if e.Subject == first.ID {
			require.Equal(t, "system_a", e.Source)
			require.JSONEq(t, `{"order":1}`, string(e.Metadata))
		}
	}
	mixed := db.relayEvents(t, func(i int) msg.Outcome { return []msg.Outcome{msg.Taken, msg.Away, msg.Refused}[i] })
	require.Equal(t, away, mixed, "the same events under the same ids")
	rest := db.relayEvents(t, func(int) msg.Outcome { return msg.Taken })
	require.Len(t, rest, 1)
	require.Equal(t, mixed[1].ID(), rest[0].ID())
	require.Empty(t, db.relayEvents(t, func(int) msg.Outcome { return msg.Taken }))
	letters, more, err := db.DeadLetters(t.Context(), 0, 10)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, letters, 1)
	require.Equal(t, mixed[2].ID(), letters[0].EventID)
	require.Equal(t, "because", letters[0].Reason)

	require.NoError(t, db.DismissDeadLetter(t.Context(), letters[0].ID, Operator{Name: "ops", Reason: "dealt with"}))
	require.Equal(t, task.CodeNotFound, task.CodeOf(db.DismissDeadLetter(t.Context(), letters[0].ID, Operator{Name: "ops"})))
	require.Equal(t, 1, db.count(t, `select count(*) from operator_actions where action = 'dead_letter.dismiss' and before is not null`))
}

func TestLaterEventsOfATaskHaveHigherNumbersAndTheirOwnOutcome(t *testing.T) {
	t.Parallel()
	db := openAt(t, sandbox.NewDatabase(t), telling(FinalEvents))
	s := message(withCallback, func(s *Submission) { s.MaxRetries = 0 })
	db.mustSubmit(t, s)
	claimed := db.mustClaim(t, "app", 1)[0]
	r := task.Report{TaskID: s.ID, AppID: "app", ClaimID: claimed.ClaimID, Outcome: task.SentFailed, Message: "no signal", ErrorCode: "E7"}
	require.Equal(t, task.Applied, db.mustReport(t, r).Verdict)
	_, err := db.RetryFailed(t.Context(), s.ID, Operator{Name: "ops"})
	require.NoError(t, err)
	db.finish(t, 1)
	told := db.relayEvents(t, func(int) msg.Outcome { return msg.Taken })
	require.Len(t, told, 2)
	require.Equal(t, "task.failed", told[0].Kind)
	require.Equal(t, task.Rejected, told[0].Reason)
	require.Empty(t, told[0].Result, "it is not its outcome any more")
	require.Equal(t, "task.succeeded", told[1].Kind)
	require.Greater(t, told[1].Seq, told[0].Seq)
}

// However much a caller has waiting, the first events of every other one are among
// the first that are published, and those of each caller keep their order.
func TestEventsOfOneCallerKeepNoOtherWaiting(t *testing.T) {
	t.Parallel()
	db := open(t)
	add := func(caller, rows, events int) {
		db.exec(t, `insert into event_outbox (kind, caller_id, ids)
			select 'task.failed', $1, array(select gen_random_uuid() from generate_series(1, $3::integer)) from generate_series(1, $2::integer)`, caller, rows, events)
	}
	add(7, 40, 100)
	add(8, 3, 1)
	add(9, 30, 10)
	var seen []DueEvent
	relay := func() Relayed {
		relayed, err := db.RelayEvents(t.Context(), 300, func(_ context.Context, due []DueEvent) ([]msg.Result, error) {
			seen = due
			return slices.Repeat([]msg.Result{takes}, len(due)), nil
		})
		require.NoError(t, err)
		return relayed
	}
	of := map[int64]int64{}
	rows, err := db.owner(t).Query(t.Context(), `select id, caller_id from event_outbox`)
	require.NoError(t, err)
	var id, caller int64
	_, err = pgx.ForEachRow(rows, []any{&id, &caller}, func() error { of[id] = caller; return nil })
	require.NoError(t, err)
	require.True(t, relay().More)
	counts, last := map[int64]int{}, map[int64]int64{}
	for i, e := range seen {
		caller := of[e.Seq]
		counts[caller]++
		require.GreaterOrEqual(t, e.Seq, last[caller], "in their order")
		last[caller] = e.Seq
		if i == 0 {
			require.EqualValues(t, 8, caller)
		}
	}
	require.Equal(t, map[int64]int{7: 100, 8: 3, 9: 100}, counts)
	for relay().More {
	}
	require.Zero(t, db.count(t, `select count(*) from event_outbox`))

	for caller := range 50 {
		add(100+caller, 1, 100)
	}
	total := 0
	for more := true; more; total += len(seen) {
		seen = nil
		more = relay().More
		require.LessOrEqual(t, len(seen), 2*300+100, "of many callers some are chosen")
	}
	require.Equal(t, 5000, total)
}

// whileWaiting holds the row that lock finds, begins do, has meanwhile happen once
// do waits for the row, and gives what came of do.
func (db *DB) whileWaiting(t *testing.T, url, lock string, id any, do func() error, meanwhile func()) error {
	t.Helper()
	watch := owner(t, url)
	held, err := owner(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = held.Exec(t.Context(), lock, id)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- asAsked(do) }()
	require.Eventually(t, func() bool {
		var waiting bool
		err := watch.QueryRow(t.Context(), `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`).Scan(&waiting)
		require.NoError(t, err)
		return waiting
	}, 5*time.Second, time.Millisecond)
	meanwhile()
	require.NoError(t, held.Rollback(t.Context()))
	return <-done
}

func TestAnEndpointMadeWhileALockIsWaitedForHearsOfTheOutcome(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := openAt(t, url, telling(FinalEvents))
	db.mustSubmit(t, message(fromCaller(7)), message(fromCaller(7)))
	claimed := db.mustClaim(t, "app", 2)
	reports := column(claimed, func(c Claimed) *Report {
		return &Report{Report: task.Report{TaskID: c.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentOK}, Request: []byte(`{}`)}
	})
	err := db.whileWaiting(t, url, `select from task_live where id = $1 for update`, claimed[1].ID,
		func() error { _, errs := db.Report(reports); return errors.Join(errs...) },
		func() { db.mustAddEndpoint(t, 7, "https://seven.example") })
	require.NoError(t, err)
	_, ids := db.outbox(t) // where the wait was so long that the reports were parted, the other went before
	require.Contains(t, slices.Concat(ids...), claimed[1].ID)
}

func TestAnEndpointMadeWhileAnOrderWaitsHearsOfTheTaskThatMakesWay(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := openAt(t, url, telling(FinalEvents))
	first := db.subscribe(t, booking(1, `{"thing1":{"value":"Tea"}}`))
	require.Equal(t, task.Pending, db.try(t, task.Report{Outcome: task.SentFailed, ShouldRetry: true}).State)
	err := db.whileWaiting(t, url, `select from subscribe_message_logs where id = $1 for update`, first.ID,
		func() error {
			_, err := db.Subscribe(t.Context(), booking(1, `{"thing1":{"value":"Coffee"}}`))
			return err
		},
		func() { db.mustAddEndpoint(t, 7, "https://seven.example") })
	require.NoError(t, err)
	kinds, ids := db.outbox(t)
	require.Equal(t, []string{"task.failed"}, kinds)
	require.Equal(t, [][]task.ID{{first.TaskID}}, ids)
}

func TestEventsOfASweepWhoseAnswerWasLostAreToldOf(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	var told, failures int
	db := openAt(t, proxy.URL(), telling(FinalEvents), func(c *Config) {
		c.OnEvents, c.OnFailed = func() { told++ }, func() { failures++ }
	})
	db.mustSubmit(t, message(withCallback, func(s *Submission) { s.MaxRetries = 0 }))
	db.claim(t)
	db.lapse(t)
	require.Zero(t, told)
	fired := proxy.LoseAnswer(sandbox.Containing("insert into task_done"))
	_, err := db.Sweep(t.Context(), 10)
	<-fired
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err))
	require.Equal(t, []int{1, 1}, []int{told, failures})
	require.Equal(t, 1, db.count(t, `select count(*) from event_outbox`))
	swept, err := db.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, swept.Rows, "nothing is left to tell of")
}

func TestASweepThatIsRolledBackTellsOfNothing(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := openAt(t, url, telling(AllEvents), func(c *Config) { c.OnFailed = func() { t.Error("told of failures") } })
	db.mustSubmit(t, message(), message(func(s *Submission) { s.MaxRetries = 0 }))
	require.Len(t, db.claim(t), 2)
	db.lapse(t)
	db.onEvents = func() { t.Error("told of events") }
	_, err := owner(t, url).Exec(t.Context(), `revoke insert on report_logs from sendonce_hot`)
	require.NoError(t, err)
	swept, err := db.Sweep(t.Context(), 10)
	require.ErrorContains(t, err, "permission denied")
	require.Empty(t, swept.Pending)
}

func TestAClaimThatIsGivenUpWithoutItsAnswerHasItsEventsRelayed(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	db := openAt(t, proxy.URL(), telling(AllEvents))
	db.mustSubmit(t, message(withCallback))
	told := make(chan bool, 100)
	db.onEvents = func() { told <- true }
	ctx, leave := context.WithCancel(t.Context())
	proxy.LoseAnswer(func(sql string) bool {
		found := sandbox.Containing("for update skip locked")(sql)
		if found {
			leave()
		}
		return found
	})
	_, _, err := db.Claim(ctx, ClaimRequest{Queue: task.DefaultQueue, AppID: "app", Limit: 1, Lease: time.Minute, Request: []byte(`{}`)})
	require.Error(t, err)
	require.NotEmpty(t, told)
}
