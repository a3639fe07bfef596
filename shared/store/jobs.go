package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// beginJobSQL ignores a begun_at more than a minute in the future. Such a time was written before a clock was
	// set back, or by another primary.
	beginJobSQL = `
with begun as (
    update upkeep set begun_at = now()
    where what = $1 and begun_at not between now() - make_interval(secs => $2) and now() + interval '1 minute'
    returning what, place
)
select begun.place::text, begun.what is not null from upkeep left join begun using (what) where what = $1`

	endJobSQL = `update upkeep set place = $2::text::jsonb, begun_at = case when $3 then '-infinity' else begun_at end where what = $1`
)

// BeginJob reports whether a job is due, and if so, marks it as begun: no instance starts it again within interval, unless
// EndJob allows it. position is what EndJob saved last; nil = nothing, or the job
// is not due.
func (db *DB) BeginJob(ctx context.Context, job string, interval time.Duration) (position *string, due bool, err error) {
	err = db.Hot.QueryRow(ctx, beginJobSQL, Unprepared, job, interval.Seconds()).Scan(&position, &due)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNoJob(job)
	}
	return position, due, err
}

// ErrNoJob returns the error for a job that has no row in upkeep.
func ErrNoJob(job string) error {
	return fmt.Errorf("the table upkeep has no row %q, so this job never runs: run migrate", job)
}

// SaveTimeout limits how long saving the progress of a job takes. The progress is saved even if the job was cancelled.
const SaveTimeout = 3 * time.Second

// EndJob saves the position from which the next run of the job continues. If again is true, the next run may
// start at once.
func (db *DB) EndJob(ctx context.Context, job string, position *string, again bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), SaveTimeout)
	defer cancel()
	_, err := db.Hot.Exec(ctx, endJobSQL, Unprepared, job, position, again)
	return err
}
