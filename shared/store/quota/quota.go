package quota

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// Waiting is a number of messages that wait to be delivered or confirmed, and the
// bytes of their data; or a number of tasks that are not final. It is also the type of a limit.
type Waiting struct{ Items, Bytes int64 }

func (w Waiting) plus(other Waiting) Waiting {
	return Waiting{w.Items + other.Items, w.Bytes + other.Bytes}
}

func (w Waiting) minus(other Waiting) Waiting {
	return Waiting{w.Items - other.Items, w.Bytes - other.Bytes}
}

// exceeds reports whether w is over a limit. In a limit, 0 = no limit.
func (w Waiting) exceeds(limit Waiting) bool {
	return limit.Items > 0 && w.Items > limit.Items || limit.Bytes > 0 && w.Bytes > limit.Bytes
}

// String describes a limit of messages. A part that is 0 (no limit) is left out.
func (w Waiting) String() string {
	switch {
	case w.Bytes == 0:
		return fmt.Sprintf("%d messages", w.Items)
	case w.Items == 0:
		return fmt.Sprintf("%d bytes", w.Bytes)
	}
	return fmt.Sprintf("%d messages and %d bytes", w.Items, w.Bytes)
}

// tenth returns a tenth of a limit, but at least one item.
func tenth(limit Waiting) Waiting {
	w := Waiting{limit.Items / 10, limit.Bytes / 10}
	if limit.Items > 0 {
		w.Items = max(w.Items, 1)
	}
	return w
}

const (
	CountEvery     = time.Second            // shortest pause between the end of a count and the next count
	CountEverySlow = 10 * time.Second       // the same for a caller with at most a tenth of its limit
	countShare     = 20                     // counting takes at most 1/countShare of the time
	countWait      = 500 * time.Millisecond // how long a call waits for a count
	CountTimeout   = 4 * time.Second        // of one count
	maxCountedRows = 1_000_000              // the most rows that are counted if only the bytes have a limit
	RetryAfter     = 5 * time.Second        // Retry-After of a call that exceeds a quota
	unsavedFor     = 15 * time.Minute       // after which an accepted message no longer counts as unsaved
	maxUnsaved     = 64                     // the most batches of unsaved messages of one caller
	maxEstimates   = 4096                   // with more estimates, idle ones are dropped
)

// Quotas has an estimate for each caller that submits in this process. The database stores no counter, so none can
// become wrong, and concurrent calls of a caller do not wait for each other. A process has a Quotas for messages and
// another one for tasks.
type Quotas struct {
	ByDefault Waiting // the limit of callers that have none of their own
	// count counts the waiting items of a caller. It may stop at rows items, which is more than the limit. If joint is
	// set, it counts the items of every caller that has any. Accepted messages are saved up to the sequence number savedTo.
	count func(ctx context.Context, caller, rows int64) (waiting map[int64]Waiting, savedTo int64, err error)
	joint *counter // of all callers; nil if each caller is counted alone

	mu        sync.Mutex
	estimates map[int64]*estimate // by caller
}

// counter has the state of the counts in the database, of one caller or (Quotas.joint) of all callers.
type counter struct {
	counting chan struct{} // closed when the count under way ends; nil if there is none
	ended    time.Time     // when the last count ended
	took     time.Duration // how long the last count took
}

// estimate is an estimate of the waiting items of one caller.
type estimate struct {
	*counter
	counted Waiting // by the database
	known   bool    // a count succeeded
	tried   bool    // a count ended, successfully or not

	underWay Waiting   // of admissions that have not ended
	saved    Waiting   // saved by this process since the last successful count began
	earlier  Waiting   // the part of saved that was saved before the count under way began
	unsaved  []unsaved // accepted by a stream through this process and perhaps not saved, oldest first
}

// unsaved is a batch of messages that a stream accepted within about a second (CountEvery).
type unsaved struct {
	Waiting
	lastSeq int64     // their highest sequence number
	start   time.Time // when the first of them was accepted
}

func (e *estimate) total() Waiting {
	all := e.counted.plus(e.saved).plus(e.underWay)
	for _, u := range e.unsaved {
		all = all.plus(u.Waiting)
	}
	return all
}

// idle reports whether the estimate can be dropped: a count will restore it.
func (e *estimate) idle() bool {
	return e.counting == nil && e.underWay == Waiting{} && len(e.unsaved) == 0
}

// New returns quotas that count each caller alone (see Quotas.count).
func New(byDefault Waiting, count func(ctx context.Context, caller, rows int64) (waiting map[int64]Waiting, savedTo int64, err error)) *Quotas {
	return &Quotas{ByDefault: byDefault, count: count}
}

// NewJoint returns quotas whose count covers all callers.
func NewJoint(byDefault Waiting, count func(ctx context.Context) (map[int64]Waiting, error)) *Quotas {
	return &Quotas{ByDefault: byDefault, joint: &counter{}, count: func(ctx context.Context, _, _ int64) (map[int64]Waiting, int64, error) {
		waiting, err := count(ctx)
		return waiting, 0, err
	}}
}

// CountedAt returns when the last count of a caller ended.
func (q *Quotas) CountedAt(caller int64) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.estimates[caller]; e != nil {
		return e.ended
	}
	return time.Time{}
}

// Refuse returns the refusal of a call that exceeds a quota.
func Refuse(retry time.Duration, message string) *task.Error {
	return &task.Error{Code: task.CodeQuota, Message: message, RetryAfter: retry}
}

// AwaitFirstCount waits for the first count of a caller, but at most half a second.
func (q *Quotas) AwaitFirstCount(ctx context.Context, caller int64, limit Waiting) {
	if !q.Refresh(caller, limit) {
		q.awaitCount(ctx, caller)
	}
}

// awaitCount waits up to half a second for the count under way, if there is one.
func (q *Quotas) awaitCount(ctx context.Context, caller int64) {
	q.mu.Lock()
	counting := q.estimate(caller).counting
	q.mu.Unlock()
	if counting == nil {
		return
	}
	wait := time.NewTimer(countWait)
	defer wait.Stop()
	select {
	case <-counting:
	case <-wait.C:
	case <-ctx.Done():
	}
}

// Admit admits as many of n new items, of the size each, as the limit allows. before is the estimate without them. Before
// Admit refuses an item, it waits up to half a second for the count that is under way or due, because the last count may
// be old.
func (q *Quotas) Admit(ctx context.Context, caller int64, limit, each Waiting, n int) (_ Admission, before Waiting) {
	admission, before := q.admit(caller, limit, each, n)
	if admission.Items() == n {
		return admission, before
	}
	q.Refresh(caller, limit)
	admission.End()
	q.awaitCount(ctx, caller)
	return q.admit(caller, limit, each, n)
}

func (q *Quotas) admit(caller int64, limit, each Waiting, n int) (_ Admission, before Waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.estimate(caller)
	before = e.total()
	var admitted Waiting
	for range n {
		if before.plus(admitted).plus(each).exceeds(limit) {
			break
		}
		admitted = admitted.plus(each)
	}
	e.underWay = e.underWay.plus(admitted)
	return Admission{quotas: q, caller: caller, waiting: admitted}, before
}

// estimate returns the estimate of a caller. If there are too many estimates, it drops the idle ones.
func (q *Quotas) estimate(caller int64) *estimate {
	e := q.estimates[caller]
	if e != nil {
		return e
	}
	if len(q.estimates) >= maxEstimates {
		maps.DeleteFunc(q.estimates, func(_ int64, old *estimate) bool { return old.idle() })
	}
	if q.estimates == nil {
		q.estimates = map[int64]*estimate{}
	}
	e = &estimate{counter: cmp.Or(q.joint, &counter{})}
	q.estimates[caller] = e
	return e
}

// Refresh starts a count if one is due, and does not wait for it. tried reports whether a count of the caller has ended.
func (q *Quotas) Refresh(caller int64, limit Waiting) (tried bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.estimate(caller)
	if e.counting != nil || !e.due(limit) {
		return e.tried
	}
	e.counting = make(chan struct{})
	counted := map[int64]*estimate{caller: e}
	if q.joint != nil {
		counted = q.estimates // including those that are added before the count ends
	}
	for _, estimate := range counted {
		estimate.earlier = estimate.saved
	}
	rows := limit.Items + 1
	if limit.Items == 0 {
		rows = maxCountedRows
	}
	start := time.Now()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), CountTimeout)
		defer cancel()
		waiting, savedTo, err := q.count(ctx, caller, rows)
		q.mu.Lock()
		defer q.mu.Unlock()
		close(e.counting)
		e.counting, e.ended, e.took = nil, time.Now(), time.Since(start)
		for id, estimate := range counted {
			estimate.tried = true
			if err == nil { // after an error, the last count and saved stay
				estimate.counted, estimate.saved, estimate.known = waiting[id], estimate.saved.minus(estimate.earlier), true
				estimate.dropSaved(savedTo)
			}
		}
	}()
	return e.tried
}

// due reports whether it is time for another count.
func (e *estimate) due(limit Waiting) bool {
	pause := max(CountEvery, countShare*e.took)
	if e.known && !e.total().exceeds(tenth(limit)) {
		pause = max(pause, CountEverySlow)
	}
	return time.Since(e.ended) > pause
}

// dropSaved drops the accepted messages up to the sequence number savedTo, which are saved, and old
// messages: their stream may have been replaced by another one.
func (e *estimate) dropSaved(savedTo int64) {
	n := 0
	for n < len(e.unsaved) && (e.unsaved[n].lastSeq <= savedTo || time.Since(e.unsaved[n].start) > unsavedFor) {
		n++
	}
	e.unsaved = e.unsaved[n:]
}

// Admission counts a message, or some tasks, for their caller before they are saved or accepted. End must be called in
// any case. If the items were saved or accepted, call Saved or Accepted before End.
type Admission struct {
	quotas  *Quotas
	caller  int64
	waiting Waiting
}

// Items returns how many items were admitted.
func (a Admission) Items() int { return int(a.waiting.Items) }

// Saved counts the admitted items as saved. They must have been committed just now.
func (a Admission) Saved() {
	a.change(func(e *estimate) { e.saved = e.saved.plus(a.waiting) })
}

// Accepted counts the admitted message as accepted: a stream stored it with this sequence
// number, and had not stored it before.
func (a Admission) Accepted(seq int64) {
	a.change(func(e *estimate) {
		last := len(e.unsaved) - 1
		if last < 0 || time.Since(e.unsaved[last].start) > CountEvery && last+1 < maxUnsaved {
			e.unsaved = append(e.unsaved, unsaved{start: time.Now()})
			last++
		}
		u := &e.unsaved[last]
		u.Waiting, u.lastSeq = u.plus(a.waiting), max(u.lastSeq, seq)
	})
}

// End ends the admission: its items no longer count as under way.
func (a Admission) End() {
	a.change(func(e *estimate) { e.underWay = e.underWay.minus(a.waiting) })
}

func (a Admission) change(change func(*estimate)) {
	if a.waiting == (Waiting{}) {
		return
	}
	a.quotas.mu.Lock()
	defer a.quotas.mu.Unlock()
	change(a.quotas.estimates[a.caller]) // not dropped while it has items under way
}

// AddSaved counts items of a caller as saved, in the place of Saved if only some items of the admission were saved. The
// admission must not have ended.
func (q *Quotas) AddSaved(caller int64, w Waiting) {
	Admission{quotas: q, caller: caller, waiting: w}.Saved()
}
