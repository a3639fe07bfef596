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

// Run makes the log partitions of the next months, closes finished days, clears open alerts whose thresholds are switched
// off, and archives old rows. It does so at most every ten minutes among all instances, and only for a short time: more
// reports that work is left, which any instance may continue at once. A step that fails does not stop the other steps.
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
