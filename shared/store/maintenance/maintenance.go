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
	maintenanceSlice = 500 * time.Millisecond // limits each part of Run that may take long
)

// Archived is the sum of some steps.
type Archived struct {
	Rows   map[string]int // number of rows that were removed, by table
	Failed []UnarchivedRow
}

func (a *Archived) add(s ArchiveStep) {
	if s.Rows > 0 {
		a.Rows[s.Table] += s.Rows
	}
	a.Failed = append(a.Failed, s.Failed...)
}

// Run makes the log partitions of the next months, closes finished days, clears open alerts whose thresholds are switched
// off, and archives old rows. Among all instances, this begins at most every ten minutes. Each call takes only a short
// time: more reports that work is left, which any instance may continue at once. A step that fails does not stop the other
// steps, and makes the next call due at once.
func (st *Store) Run(ctx context.Context) (done Archived, more bool, err error) {
	stored, due, err := st.db.BeginJob(ctx, maintenanceJob, maintenanceEvery)
	if err != nil || !due {
		return done, false, store.Wrap("maintenance", err)
	}
	err = st.db.MakeLogPartitions(ctx)
	more, closeErr := st.closeDaysUntil(ctx, time.Now().Add(maintenanceSlice))
	err = errors.Join(err, st.alerts.ClearIfOff(ctx))
	done, position, moreOld, archiveErr := st.archiveSome(ctx, parsePosition(stored))
	more = more || moreOld
	err = errors.Join(err, closeErr, archiveErr)
	err = errors.Join(err, st.db.EndJob(ctx, maintenanceJob, position.stored(), more || err != nil))
	return done, more, store.Wrap("maintenance", err)
}

// archiveSome archives for about maintenanceSlice, from a position on. If more is true, continue at next. Otherwise next
// is the beginning.
func (st *Store) archiveSome(ctx context.Context, from archivePosition) (done Archived, next archivePosition, more bool, err error) {
	end := time.Now().Add(maintenanceSlice)
	done.Rows = map[string]int{}
	err = st.runArchive(ctx, ArchiveRun{}, from, func(s ArchiveStep) (stop bool) {
		done.add(s)
		next, more = s.position, s.more && time.Now().After(end) // the run does not stop between two tables
		return more
	})
	if !more {
		next = archivePosition{}
	}
	return done, next, more, err
}
