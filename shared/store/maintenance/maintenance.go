package maintenance

import (
	"context"
	"errors"
	"time"

	"github.com/sendonce/sendonce/shared/store"
)

const (
	maintenanceJob   = "maintenance" // its row in the table upkeep
	maintenanceEvery = 10 * time.Minute
	maintenanceSlice = 500 * time.Millisecond // after this time a Run begins no more work on closing days; archiving then has the same time again
)

// Archived is the sum of the archive steps of one Run.
type Archived struct {
	Rows   map[string]int // number of rows that were removed, by table
	Failed []UnarchivedRow
}

// Run makes the log partitions of the next months, closes past days, clears the open alerts of queues if all thresholds
// are switched off, and archives old rows. If the last run of any instance began less than ten minutes ago, Run does
// nothing, unless that run left work or failed. more reports that this run left work; any instance may continue at
// once. A step that fails does not stop the other steps.
func (st *Store) Run(ctx context.Context) (done Archived, more bool, err error) {
	stored, due, err := st.db.BeginJob(ctx, maintenanceJob, maintenanceEvery)
	if err != nil || !due {
		return done, false, store.Wrap("maintenance", err)
	}
	err = st.db.MakeLogPartitions(ctx)
	more, closeErr := st.closeDaysUntil(ctx, time.Now().Add(maintenanceSlice))
	err = errors.Join(err, st.alerts.ClearIfOff(ctx))
	done, position, moreRows, archiveErr := st.archiveSome(ctx, parsePosition(stored))
	more = more || moreRows
	err = errors.Join(err, closeErr, archiveErr)
	err = errors.Join(err, st.db.EndJob(ctx, maintenanceJob, position.stored(), more || err != nil))
	return done, more, store.Wrap("maintenance", err)
}

// archiveSome archives for about maintenanceSlice, from a position on. If more is true, the next call continues at
// next. Otherwise next is the beginning.
func (st *Store) archiveSome(ctx context.Context, from archivePosition) (done Archived, next archivePosition, more bool, err error) {
	end := time.Now().Add(maintenanceSlice)
	done.Rows = map[string]int{}
	err = st.runArchive(ctx, ArchiveRun{}, from, func(s ArchiveStep) (stop bool) {
		if s.Rows > 0 {
			done.Rows[s.Table] += s.Rows
		}
		done.Failed = append(done.Failed, s.Failed...)
		stop = s.more && time.Now().After(end) // at the end of a table the run goes on with the next one, even after end
		next, more = s.position, stop
		return stop
	})
	if !more {
		next = archivePosition{}
	}
	return done, next, more, err
}
