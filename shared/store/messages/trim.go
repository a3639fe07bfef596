package messages

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Trim says where a trim of the streams begins, and which streams need it most.
type Trim struct {
	From    uint64   // the sequence number at which the trim of the stream of messages begins; 0 = at its beginning
	Refused []string // the streams that accepted nothing when they were last tried (recentlyPaused)
}

const (
	trimEvery       = 5 * time.Minute
	trimEveryPaused = 15 * time.Second // while a stream accepts nothing (recentlyPaused)

	// TrimIntervalInAlert is the time between two trims while there is an alert that a stream is nearly full.
	TrimIntervalInAlert = time.Minute
)

// recentlyPaused selects the streams that are paused, or whose pause ended at most 5 minutes ago and that have accepted
// nothing since.
const recentlyPaused = `from stream_pauses where failures > 0 and until > now() - interval '5 minutes'`

const openStreamAlert = `from alerts where cleared_at is null and kind = '` + string(task.AlertStreamFull) + `'`

const (
	beginTrimSQL = `
with begun as (
    update upkeep set begun_at = now()
    where what = 'events' and begun_at not between
        now() - make_interval(secs => case when exists (select ` + recentlyPaused + `) then $1::float8
            when exists (select ` + openStreamAlert + `) then $2::float8 else $3::float8 end) and now() + interval '1 minute'
    returning what
)
select begun.what is not null, seq, array(select stream ` + recentlyPaused + `) from upkeep left join begun using (what) where what = 'events'`

	endTrimSQL = `update upkeep set seq = $1 where what = 'events'`

	setInboxesTrimmedSQL = `
insert into inbox_trims as t (user_name, seq)
select user_name, seq from unnest($1::text[], $2::bigint[]) n (user_name, seq) where n.seq <= $3
on conflict (user_name) do update set seq = case when t.seq > $3 then excluded.seq else greatest(t.seq, excluded.seq) end, trimmed_at = now()`

	// forgetInboxTrimsSQL removes rows of an earlier stream of the same name (seq > $1), and rows that are older than every
	// message in the stream. It removes a limited number, so that it always ends before the statement timeout.
	forgetInboxTrimsSQL = `
delete from inbox_trims where user_name = any(array(
    select user_name from inbox_trims where seq > $1 or trimmed_at < now() - make_interval(secs => $2::float8) order by user_name limit 10000 for update skip locked))`

	inboxTrimmedSQL = `select coalesce(max(seq), 0) from inbox_trims where user_name = $1`

	forgetUsageSQL   = `delete from stream_usage` + outOfDate
	forgetUnsavedSQL = `delete from inbox_unsaved where ctid = any(array(select ctid from inbox_unsaved` + outOfDate + ` limit 100000 for update skip locked))`
	outOfDate        = ` where since not between now() - interval '1 hour' and now() + interval '1 hour'`

	// endPausesSQL makes the relays try the streams at once. It locks the rows in the order in which relays do.
	endPausesSQL = `
with locked as materialized (select stream from stream_pauses where stream = any($1::text[]) and until > now() order by stream for update)
update stream_pauses set until = now() from locked where stream_pauses.stream = locked.stream`
)

// BeginTrim reports whether this instance must trim the streams now (due). In all instances together, a trim is due every
// five minutes, every minute while there is an alert that a stream is nearly full, and every 15 s while a stream accepts
// nothing (recentlyPaused).
func (st *Store) BeginTrim(ctx context.Context) (t Trim, due bool, err error) {
	err = st.db.Hot.QueryRow(ctx, beginTrimSQL, store.Unprepared, trimEveryPaused.Seconds(), TrimIntervalInAlert.Seconds(), trimEvery.Seconds()).Scan(&due, &t.From, &t.Refused)
	if errors.Is(err, pgx.ErrNoRows) {
		err = store.ErrNoJob("events")
	}
	return t, due, store.Wrap("begin trim", err)
}

// EndTrim records where the next trim of the stream of messages begins. It ends the pauses of the streams that have
// room again (freed), and deletes counts of messages older than an hour: all of stream_usage, and at most 100,000 of
// inbox_unsaved.
func (st *Store) EndTrim(ctx context.Context, next uint64, freed []string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.SaveTimeout)
	defer cancel()
	_, err := st.db.Hot.Exec(ctx, endTrimSQL, store.Unprepared, int64(next))
	if err == nil {
		_, err = st.db.Hot.Exec(ctx, forgetUsageSQL, store.Unprepared)
	}
	if err == nil && len(freed) > 0 {
		_, err = st.db.Hot.Exec(ctx, endPausesSQL, store.Unprepared, freed)
	}
	if err == nil {
		_, err = st.db.Hot.Exec(ctx, forgetUnsavedSQL, store.Unprepared)
	}
	return store.Wrap("end trim", err)
}

// SetInboxesTrimmed records that messages to users are about to be removed from the stream of users. upTo has,
// for each user, the last sequence number to be removed; last is the last sequence number of the stream.
func (st *Store) SetInboxesTrimmed(ctx context.Context, upTo map[string]uint64, last uint64) error {
	users := slices.Sorted(maps.Keys(upTo)) // sorted, so that two calls never deadlock
	seqs := store.Column(users, func(user string) int64 { return int64(upTo[user]) })
	_, err := st.db.Hot.Exec(ctx, setInboxesTrimmedSQL, store.Unprepared, users, seqs, int64(last))
	return store.Wrap("record trimmed inboxes", err)
}

// ForgetInboxTrims removes what SetInboxesTrimmed recorded for an earlier stream of users, or for messages that the stream has
// removed by age since. last is the last sequence number of the stream, and maxAge is how long the stream keeps a message.
func (st *Store) ForgetInboxTrims(ctx context.Context, last uint64, maxAge time.Duration) error {
	_, err := st.db.Hot.Exec(ctx, forgetInboxTrimsSQL, store.Unprepared, int64(last), maxAge.Seconds())
	return store.Wrap("forget trimmed inboxes", err)
}

// InboxTrimmed returns the sequence number up to which trims removed the messages to a user from the stream of
// users; 0 = none. Messages that the stream removed by age do not count.
func (st *Store) InboxTrimmed(ctx context.Context, user string) (upTo uint64, err error) {
	err = st.db.Hot.QueryRow(ctx, inboxTrimmedSQL, user).Scan(&upTo)
	return upTo, store.Wrap("trimmed inbox", err)
}

// finishedMessagesSQL: status 2 = received.
const finishedMessagesSQL = `
select id, status = 2 or abandoned from message_done where id = any($1::uuid[])
union all
select id, status = 2 or abandoned from archived_messages where id = any($1::uuid[])`

// Final returns the final messages among ids. The value is true if the message was received or abandoned, false if
// it was sent and needed no confirmation.
func (st *Store) Final(ctx context.Context, ids []task.ID) (map[task.ID]bool, error) {
	finished := make(map[task.ID]bool, len(ids))
	var id task.ID
	var confirmedOrAbandoned bool
	err := store.QueryEach(ctx, st.db.Hot, finishedMessagesSQL, []any{ids}, []any{&id, &confirmedOrAbandoned}, func() {
		finished[id] = confirmedOrAbandoned
	})
	return finished, store.Wrap("finished messages", err)
}
