package alerts

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Alert is one incident of a queue or stream.
type Alert struct {
	ID task.ID
	task.Alert
	Since        time.Time
	ClearedAt    *time.Time `json:"cleared_at"`    // nil = the alert is open
	ClearedValue *float64   `json:"cleared_value"` // the value that cleared it; nil = the alert is open
}

// AtEvent reads an alert from the JSON of its present row, and returns the alert as it was when its event of this kind
// happened; nil for a nil row. Fields that cannot be read stay empty, so that other events are published.
func AtEvent(row *string, kind string) *Alert {
	if row == nil {
		return nil
	}
	var a Alert
	_ = json.Unmarshal([]byte(*row), &a)
	if kind == store.KindAlertRaised {
		a.ClearedAt, a.ClearedValue = nil, nil
	} else if a.ClearedValue != nil {
		a.Value = *a.ClearedValue
	}
	return &a
}

// openAlertsSQL returns the open alerts of streams if $1 is true, otherwise those of queues. Each row also has the time of
// the transaction. If no alert is open, there is one row, with only the time.
const openAlertsSQL = `select now(), a.id, a.kind, a.queue, a.threshold from (select) one left join alerts a on a.cleared_at is null and (a.kind = '` + string(task.AlertStreamFull) + `') = $1`

// maxCheckedQueues limits the queues that a check reads besides those with an open alert or a threshold of their own.
// Callers choose the names of queues, so there may be very many.
const maxCheckedQueues = "1000"

// pendingSQL counts the pending tasks of the queues $1, and of the queues with most pending tasks.
const pendingSQL = `
select queue, count(*) from task_live where state = 1 group by queue
order by queue = any($1::text[]) desc, count(*) desc, queue limit cardinality($1::text[]) + ` + maxCheckedQueues + `
`

// countedSQL selects the results since $1 that count for the failure rate: successes, and the failures
// for which task.Task.FailureCounts is true. Reason 5 is expired, 6 is cancelled.
const countedSQL = `
select id, status from task_done
where reported_at >= $1 and (status = 2 or reason not in (5, 6) and coalesce(error_code, '') not in ('` + task.NoConsent + `', '` + task.AlreadySent + `'))`

// anyFailureSQL returns whether a result of countedSQL is a failure. It counts all these results: if it could stop at the
// first failure, or use the index of failed tasks, the planner would choose to read the history.
const anyFailureSQL = `select count(*) filter (where status = 3) > 0 from (` + countedSQL + `) d`

// resultsSQL counts the results since $1 of the queues $2, and of the queues with most failures that have
// at least $3 results.
const resultsSQL = `
select t.queue, count(*), count(*) filter (where d.status = 3)
from (` + countedSQL + `) d cross join lateral (select queue from tasks where tasks.id = d.id offset 0) t
group by t.queue
having t.queue = any($2::text[]) or count(*) >= $3
order by t.queue = any($2::text[]) desc, count(*) filter (where d.status = 3) desc, t.queue limit cardinality($2::text[]) + ` + maxCheckedQueues + `
`

// alertsJob is the name of the job in upkeep: its row limits how often all instances together check.
const alertsJob = "alerts"

// checkIntervalFactor limits checks to a twentieth of an instance's time: if a check took 2 s, the next one in this process
// begins at least 40 s after the beginning of that check.
const checkIntervalFactor = 20

// Check reads the queues, raises the alerts that are due and clears those that are over, each
// with its event in the same commit. Any number of instances may call it; each alert is raised
// once. At most three checks begin within task.AlertRules.CheckInterval. again means that another check
// is needed: an alert is open, a failure within the window counts, this call came too early, or it failed. Without
// thresholds, Check does nothing (see ClearIfOff). The cost grows with the pending tasks and, after failures, with
// the results of the window, never with the history.
func (st *Store) Check(ctx context.Context) (again bool, err error) {
	if !st.rules.On() {
		return false, nil
	}
	interval := st.rules.CheckInterval() / 3
	began := time.Now()
	next := st.nextAlertCheck.Load()
	if began.UnixNano() < next || !st.nextAlertCheck.CompareAndSwap(next, began.Add(interval).UnixNano()) {
		return true, nil
	}
	_, due, err := st.db.BeginJob(ctx, alertsJob, interval)
	if err != nil || !due {
		return true, store.Wrap("check alerts", err)
	}
	again, err = st.checkNow(ctx)
	interval = max(interval, checkIntervalFactor*time.Since(began))
	st.nextAlertCheck.Store(began.Add(interval).UnixNano())
	return again || err != nil, store.Wrap("check alerts", err)
}

// ClearIfOff clears the open alerts of queues if all thresholds of queues are off.
func (st *Store) ClearIfOff(ctx context.Context) error {
	if st.rules.On() {
		return nil
	}
	_, err := st.checkNow(ctx)
	return err
}

func (st *Store) checkNow(ctx context.Context) (again bool, err error) {
	s, err := st.readSnapshot(ctx)
	if err != nil {
		return false, err
	}
	return st.applySnapshot(ctx, s)
}

// alertSnapshot has the data of a check, all of one instant. For a check of streams, it has only the open alerts.
type alertSnapshot struct {
	at       time.Time              // by the clock of the database
	open     []task.Alert           // without their values
	ids      map[task.Alert]task.ID // ids of the open alerts
	queues   map[string]task.QueueLoad
	failures bool // a result within the window is a failure that counts
}

func (st *Store) readSnapshot(ctx context.Context) (s alertSnapshot, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, st.db.Read, options, func(tx pgx.Tx) error {
		s = alertSnapshot{ids: map[task.Alert]task.ID{}, queues: map[string]task.QueueLoad{}}
		if err := s.readAlerts(ctx, tx, false); err != nil {
			return err
		}
		if st.rules.Backlog.On() {
			if err := s.readPending(ctx, tx, st.rules); err != nil {
				return err
			}
		}
		if !st.rules.FailureRate.On() {
			return nil
		}
		return s.readResults(ctx, tx, st.rules)
	})
	return s, err
}

// readAlerts reads the open alerts of streams if streams is true, otherwise those of queues.
func (s *alertSnapshot) readAlerts(ctx context.Context, q store.Querier, streams bool) error {
	var id *task.ID // null in the only row if no alert is open
	var kind *task.AlertKind
	var queue *string
	var threshold *float64
	return store.QueryEach(ctx, q, openAlertsSQL, []any{streams}, []any{&s.at, &id, &kind, &queue, &threshold}, func() {
		if id != nil {
			a := task.Alert{Kind: *kind, Queue: *queue, Threshold: *threshold}
			s.open, s.ids[a] = append(s.open, a), *id
		}
	})
}

// required returns the queues that a check must read: those with an open alert, since the alert of a queue that is not read
// is cleared, and those with a threshold of their own.
func (s *alertSnapshot) required(limits task.Limits) []string {
	queues := slices.AppendSeq([]string{}, maps.Keys(limits))
	for _, a := range s.open {
		queues = append(queues, a.Queue)
	}
	return queues
}

func (s *alertSnapshot) readPending(ctx context.Context, tx pgx.Tx, rules task.AlertRules) error {
	var queue string
	var load task.QueueLoad
	return store.QueryEach(ctx, tx, pendingSQL, []any{store.Unprepared, s.required(rules.Backlog)}, []any{&queue, &load.Pending}, func() {
		s.queues[queue] = load
	})
}

func (s *alertSnapshot) readResults(ctx context.Context, tx pgx.Tx, rules task.AlertRules) error {
	since := s.at.Add(-rules.Window)
	err := tx.QueryRow(ctx, anyFailureSQL, since).Scan(&s.failures)
	if err != nil || !s.failures {
		return err // without a failure, the rate of every queue is 0
	}
	var queue string
	var finished, failures int64
	return store.QueryEach(ctx, tx, resultsSQL, []any{store.Unprepared, since, s.required(rules.FailureRate), rules.MinFinished}, []any{&queue, &finished, &failures}, func() {
		load := s.queues[queue]
		load.Finished, load.Failed = finished, failures
		s.queues[queue] = load
	})
}

const (
	// lockAlertsSQL runs first, so that the other statements see what a concurrent
	// check has committed.
	lockAlertsSQL = `select pg_advisory_xact_lock(7310003)`

	// raiseAlertsSQL does not raise an alert if one of the same kind and queue was cleared since the time of the snapshot, $6.
	raiseAlertsSQL = `
with raised as (
    insert into alerts (id, kind, queue, value, threshold)
    select * from unnest($1::uuid[], $2::text[], $3::text[], $4::float8[], $5::float8[]) as t (id, kind, queue, value, threshold)
    where not exists (select from alerts a where a.kind = t.kind and a.queue = t.queue and a.cleared_at >= $6)
    on conflict (kind, queue) where cleared_at is null do nothing
    returning id
)
insert into event_outbox (kind, ids) select '` + store.KindAlertRaised + `', array_agg(id) from raised having count(*) > 0 returning ids`

	clearAlertsSQL = `
with cleared as (
    update alerts a set cleared_at = clock_timestamp(), cleared_value = t.value
    from unnest($1::uuid[], $2::float8[]) as t (id, value)
    where a.id = t.id and a.cleared_at is null
    returning a.id
)
insert into event_outbox (kind, ids) select '` + store.KindAlertCleared + `', array_agg(id) from cleared having count(*) > 0 returning ids`
)

// applySnapshot raises and clears alerts of queues as the snapshot requires, and reports whether another check is needed.
func (st *Store) applySnapshot(ctx context.Context, s alertSnapshot) (again bool, err error) {
	toRaise, toClear := st.rules.CheckQueues(s.queues, s.open)
	again = s.failures || len(toRaise) > 0 || len(toClear) < len(s.open)
	return again, st.writeAlerts(ctx, s, toRaise, toClear)
}

// writeAlerts raises and clears the alerts that were chosen from the snapshot s. However many instances call it, each
// alert is raised and cleared once.
func (st *Store) writeAlerts(ctx context.Context, s alertSnapshot, toRaise, toClear []task.Alert) error {
	if len(toRaise)+len(toClear) == 0 {
		return nil
	}
	newIDs, openIDs := store.Column(toRaise, func(task.Alert) task.ID { return task.NewID() }), store.Column(toClear, s.idOf)
	notifier := st.db.NewNotifier()
	var raisedIDs, clearedIDs []task.ID // by this call, not by another instance
	err := pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue(lockAlertsSQL)
		notifier.CollectIDs(batch.Queue(raiseAlertsSQL, newIDs,
			store.Column(toRaise, alertKind), store.Column(toRaise, alertQueue), store.Column(toRaise, alertValue), store.Column(toRaise, alertThreshold), s.at), &raisedIDs)
		notifier.CollectIDs(batch.Queue(clearAlertsSQL, openIDs, store.Column(toClear, alertValue)), &clearedIDs)
		return tx.SendBatch(ctx, &batch).Close()
	})
	if err := notifier.Notify(err); err != nil {
		return err
	}
	for _, id := range raisedIDs {
		st.onAlert(id, toRaise[slices.Index(newIDs, id)], false)
	}
	for _, id := range clearedIDs {
		st.onAlert(id, toClear[slices.Index(openIDs, id)], true)
	}
	return nil
}

// CheckStreams raises the alerts of streams that are due and clears those that are over, each with
// its event in the same commit. open means that an alert of a stream is open now. used returns how full each stream is,
// from 0 to 1; without a threshold it is not called. The open alerts are read before used is called, since an older
// result of used could raise an alert again that has just been cleared. A stream that used leaves out keeps its
// alert, if there is a threshold. CheckStreams returns an error of used after it has written the alerts.
func (st *Store) CheckStreams(ctx context.Context, used func(context.Context) (map[string]float64, error)) (open bool, err error) {
	s := alertSnapshot{ids: map[task.Alert]task.ID{}}
	if err := s.readAlerts(ctx, st.db.Hot, true); err != nil {
		return false, store.Wrap("check stream alerts", err)
	}
	var usedParts map[string]float64
	var usedErr error
	if st.rules.StreamFull > 0 {
		usedParts, usedErr = used(ctx)
	}
	toRaise, toClear := st.rules.CheckStreams(usedParts, s.open)
	open = len(toRaise)+len(s.open) > len(toClear)
	if err := st.writeAlerts(ctx, s, toRaise, toClear); err != nil {
		return open, store.Wrap("check stream alerts", err)
	}
	return open, usedErr
}

// idOf returns the id of an open alert. It ignores the value of a, since s.ids has alerts without their values.
func (s *alertSnapshot) idOf(a task.Alert) task.ID {
	a.Value = 0
	return s.ids[a]
}

func alertKind(a task.Alert) string       { return string(a.Kind) }
func alertQueue(a task.Alert) string      { return a.Queue }
func alertValue(a task.Alert) float64     { return a.Value }
func alertThreshold(a task.Alert) float64 { return a.Threshold }

// Cursor identifies the last alert of the previous page; zero = the first page.
type Cursor struct {
	Open bool
	ID   task.ID
}

const alertsSQL = `
select id, kind, queue, value, threshold, since, cleared_at, cleared_value from alerts
where ($2::uuid is null or (cleared_at is null, id) < ($1::boolean, $2::uuid)) and (cardinality($3::text[]) = 0 or kind <> '` + string(task.AlertStreamFull) + `' and queue = any($3))
order by cleared_at is null desc, id desc
limit $4`

// List lists the alerts of some queues, or if queues is empty, of all queues and streams. Open alerts
// come first, then cleared ones, each newest first.
func (st *Store) List(ctx context.Context, queues []string, after Cursor, limit int) (page []Alert, more bool, err error) {
	page, more, err = store.QueryPage[Alert](ctx, st.db.Read, limit, alertsSQL, after.Open, store.OrNull(after.ID), store.NotNull(queues))
	return page, more, store.Wrap("alerts", err)
}
