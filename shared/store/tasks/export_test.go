package tasks

import (
	"context"
	"time"

	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	ClaimBlock   = claimBlock
	ManyDead     = manyDead
	ScanRows     = scanRows
	TaskSample   = taskSample
	WalkIndexSQL = walkIndexSQL

	SearchCallers = searchCallers
)

var (
	SearchKeySQL       = searchKeySQL
	SearchDoneClaimSQL = searchDoneClaimSQL
)

// MultiRowStatements returns the text of each store.BulkStatement of this package, by name.
func MultiRowStatements() map[string]string {
	return map[string]string{
		"insertDone": insertDone.SQL(), "updateLive": updateLive.SQL(), "insertEvents": insertEvents.SQL(),
		"logVerdicts": logVerdicts.SQL(), "logForeign": logForeign.SQL(), "logReceived": logReceived.SQL(),
		"insertPlain": plainInserts[0].SQL(), "insertPlainWithEvents": plainInserts[1].SQL(),
		"insertKeyed": keyedInserts[0].SQL(), "insertKeyedWithEvents": keyedInserts[1].SQL(),
	}
}

func (st *Store) ClaimTogether(ctx context.Context, reqs []ClaimRequest) ([][]Claimed, error) {
	return st.claimTogether(ctx, reqs)
}

// LastClaimID returns the last claim id that this store used; 0 = none.
func (st *Store) LastClaimID() int64 { return st.claimIDs.last }

func (st *Store) RecentlyNonEmpty(queue string) bool { return st.nonEmpty.has(queue) }

// ObserveSlowClaims records slowInARow slow claims, so that the next claim starts a scan in the background, unless it finds tasks
// and is fast.
func (st *Store) ObserveSlowClaims(queue string) {
	for range slowInARow {
		st.marks.observe(queue, time.Minute, false)
	}
}

// UseMarks raises the low-water marks as if these tasks had been claimed, and makes claims start at the marks.
func (st *Store) UseMarks(queue string, claimed ...Claimed) {
	st.marks.advance(queue, claimed)
	q := st.marks.queue(queue)
	q.inUse, q.interval = true, scanLimit
}

func (st *Store) MarksInUse(queue string) bool { return len(st.marks.of(queue)) > 0 }

func (st *Store) CountTasks(ctx context.Context, sample int) (map[int64]quota.Waiting, error) {
	return st.countTasks(ctx, sample)
}

// Flush is one flush of submissions.
type Flush struct{ submitFlush }

func (st *Store) NewFlush(rows ...*Submission) *Flush {
	return &Flush{submitFlush{
		store: st, rows: rows, blocked: func(string) bool { return false }, out: make([]Submitted, len(rows)), actions: make([]action, len(rows)),
	}}
}

func (f *Flush) Commit(ctx context.Context, mayBeStored bool) error {
	return f.commit(ctx, mayBeStored)
}

func (f *Flush) Resolve(ctx context.Context) ([]Submitted, error) { return f.out, f.resolve(ctx) }

func (f *Filter) Bounds() (low, high task.ID) { return f.bounds() }

func (f *Filter) IndexStatements(low, high task.ID) (list, edge string, edgeArgs []any) {
	return f.indexStatements(low, high)
}

func (f *Filter) Args(low, high task.ID) []any { return f.args(low, high) }
