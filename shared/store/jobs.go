package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// A begun_at far in the future comes from a clock that was set back since, or from another
	// primary.
	beginJobSQL = `
with begun as (
    update upkeep set begun_at = now()
    where what = $1 and begun_at not between now() - make_interval(secs => $2) and now() + interval '1 minute'
    returning what, place
)
select begun.place::text, begun.what is not null from upkeep left join begun using (what) where what = $1`

	endJobSQL = `update upkeep set place = $2::text::jsonb, begun_at = case when $3 then '-infinity' else begun_at end where what = $1`
)

// BeginJob reports whether a job is due, and where its last run stopped. If due is
// true, no other instance starts the job for the time every.
func (db *DB) BeginJob(ctx context.Context, what string, every time.Duration) (place *string, due bool, err error) {
	err = db.Hot.QueryRow(ctx, beginJobSQL, Unprepared, what, every.Seconds()).Scan(&place, &due)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNoJob(what)
	}
	return place, due, err
}

// ErrNoJob is the error of a job that has no row in upkeep: nobody would ever run it.
func ErrNoJob(what string) error {
	return fmt.Errorf("the table upkeep has no row %q, so this job never runs: run migrate", what)
}

// SaveTimeout limits saving the progress of a job, also after its caller has left.
const SaveTimeout = 3 * time.Second

// EndJob saves where the next run continues. If again is true, that run may start at
// once.
func (db *DB) EndJob(ctx context.Context, what string, place *string, again bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), SaveTimeout)
	defer cancel()
	_, err := db.Hot.Exec(ctx, endJobSQL, Unprepared, what, place, again)
	return err
}
