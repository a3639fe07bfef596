package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// What is done now and then, whichever instance comes first.
const (
	upkeepHouse  = "house"
	upkeepAlerts = "alerts"

	houseEvery     = 10 * time.Minute
	trimEvery      = 5 * time.Minute
	trimEveryWhile = 15 * time.Second // a stream takes nothing

	// TrimEveryAlert is how often streams are trimmed while one has an alert.
	TrimEveryAlert = time.Minute
)

const (
	// A time far ahead is that of a clock which was set back since, or of another primary's.
	beginUpkeepSQL = `
update upkeep set begun_at = now()
where what = $1 and begun_at not between now() - make_interval(secs => $2) and now() + interval '1 minute'
returning place::text`

	endUpkeepSQL = `update upkeep set place = $2::text::jsonb, begun_at = case when $3 then '-infinity' else begun_at end where what = $1`
)

// beginUpkeep tells whether something is to be done now, and where the last one
// left off. Whoever is told so has it in hand: nobody else is until every is over.
func (db *DB) beginUpkeep(ctx context.Context, what string, every time.Duration) (from archivePlace, due bool, err error) {
	var place *string
	err = db.hot.QueryRow(ctx, beginUpkeepSQL, unprepared, what, every.Seconds()).Scan(&place)
	if errors.Is(err, pgx.ErrNoRows) {
		return from, false, nil
	}
	return parsePlace(place), err == nil, err
}

// upkeepTime is what is kept of a call's time to say how far it came.
const upkeepTime = 3 * time.Second

// endUpkeep says where the next one goes on; again has it do so at once.
func (db *DB) endUpkeep(ctx context.Context, what string, place archivePlace, again bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), upkeepTime)
	defer cancel()
	_, err := db.hot.Exec(ctx, endUpkeepSQL, unprepared, what, place.stored(), again)
	return err
}

// houseMoment is how long each part of KeepHouse goes on that may be long.
const houseMoment = 500 * time.Millisecond

// KeepHouse makes the coming log partitions, closes finished days, clears the
// alerts that nobody asks for any more and archives what is old, at most every ten
// minutes among all instances. It closes days and archives for a moment only: more
// says that there is more to do, now and by anybody. What fails keeps nothing else
// from being done.
func (db *DB) KeepHouse(ctx context.Context) (done Archived, more bool, err error) {
	place, due, err := db.beginUpkeep(ctx, upkeepHouse, houseEvery)
	if err != nil || !due {
		return done, false, failed("keep house", err)
	}
	err = db.MakeLogPartitions(ctx)
	more, closeErr := db.closeDays(ctx, time.Now().Add(houseMoment))
	if !db.alerts.On() {
		_, watchErr := db.watch(ctx)
		err = errors.Join(err, watchErr)
	}
	done, place, moreOld, archiveErr := db.archiveSome(ctx, place)
	more = more || moreOld
	err = errors.Join(err, closeErr, archiveErr)
	err = errors.Join(err, db.endUpkeep(ctx, upkeepHouse, place, more || err != nil))
	return done, more, failed("keep house", err)
}
