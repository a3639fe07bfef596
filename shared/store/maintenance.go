package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Jobs that one instance runs at a time, whichever comes first.
const (
	maintenanceAll    = "house"
	maintenanceAlerts = "alerts"

	maintenanceEvery = 10 * time.Minute
	trimEvery        = 5 * time.Minute
	trimEveryWhile   = 15 * time.Second // while a stream is full

	// TrimEveryAlert is how often streams are trimmed while one has an alert.
	TrimEveryAlert = time.Minute
)

const (
	// A begun_at far in the future comes from a clock that was set back since, or from another
	// primary.
	beginMaintenanceSQL = `
update upkeep set begun_at = now()
where what = $1 and begun_at not between now() - make_interval(secs => $2) and now() + interval '1 minute'
returning place::text`

	endMaintenanceSQL = `update upkeep set place = $2::text::jsonb, begun_at = case when $3 then '-infinity' else begun_at end where what = $1`
)

// beginMaintenance reports whether a job is due, and where its last run stopped. If due is
// true, no other instance starts the job for the time every.
func (db *DB) beginMaintenance(ctx context.Context, what string, every time.Duration) (from archivePlace, due bool, err error) {
	var place *string
	err = db.hot.QueryRow(ctx, beginMaintenanceSQL, unprepared, what, every.Seconds()).Scan(&place)
	if errors.Is(err, pgx.ErrNoRows) {
		return from, false, nil
	}
	return parsePlace(place), err == nil, err
}

// maintenanceSaveTimeout limits saving the progress of a job, also after its caller has left.
const maintenanceSaveTimeout = 3 * time.Second

// endMaintenance saves where the next run continues. If again is true, that run may start at
// once.
func (db *DB) endMaintenance(ctx context.Context, what string, place archivePlace, again bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maintenanceSaveTimeout)
	defer cancel()
	_, err := db.hot.Exec(ctx, endMaintenanceSQL, unprepared, what, place.stored(), again)
	return err
}

// maintenanceSlice limits each part of RunMaintenance that may take long.
const maintenanceSlice = 500 * time.Millisecond

// RunMaintenance makes the log partitions of the next months, closes finished days, clears
// open alerts when thresholds are switched off, and archives old rows. It runs at most every
// ten minutes among all instances, and only for a short time: more reports that work is left,
// which any instance may continue at once. A step that fails does not stop the other steps.
func (db *DB) RunMaintenance(ctx context.Context) (done Archived, more bool, err error) {
	place, due, err := db.beginMaintenance(ctx, maintenanceAll, maintenanceEvery)
	if err != nil || !due {
		return done, false, failed("maintenance", err)
	}
	err = db.MakeLogPartitions(ctx)
	more, closeErr := db.closeDays(ctx, time.Now().Add(maintenanceSlice))
	if !db.alerts.On() {
		_, alertErr := db.checkAlerts(ctx)
		err = errors.Join(err, alertErr)
	}
	done, place, moreOld, archiveErr := db.archiveSome(ctx, place)
	more = more || moreOld
	err = errors.Join(err, closeErr, archiveErr)
	err = errors.Join(err, db.endMaintenance(ctx, maintenanceAll, place, more || err != nil))
	return done, more, failed("maintenance", err)
}
