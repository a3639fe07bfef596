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

// Trim is a trim of the streams that is due now.
type Trim struct {
	From    uint64   // the sequence at which the last trim of the stream of messages ended; 0 = at its first
	Refused []string // the streams that refused the last message
}

const (
	trimEvery     = 5 * time.Minute
	trimEveryFull = 15 * time.Second // while a stream is full

	// TrimEveryAlert is how often streams are trimmed while one has an alert.
	TrimEveryAlert = time.Minute
)

// recentlyPaused selects the streams that accepted nothing within the last 5 minutes.
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

	// setInboxesTrimmedSQL deletes the rows of an earlier stream of the same name, and rows
	// that are older than any message in the stream.
	setInboxesTrimmedSQL = `
with old as (
    delete from inbox_trims where (seq > $3 or trimmed_at < now() - make_interval(secs => $4::float8)) and user_name <> all($1::text[])
)
insert into inbox_trims as t (user_name, seq)
select user_name, seq from unnest($1::text[], $2::bigint[]) n (user_name, seq) where n.seq <= $3
on conflict (user_name) do update set seq = case when t.seq > $3 then excluded.seq else greatest(t.seq, excluded.seq) end, trimmed_at = now()`

	inboxTrimmedSQL = `select coalesce(max(seq), 0) from inbox_trims where user_name = $1`

	forgetUsageSQL = `delete from stream_usage where since < now() - interval '1 hour'`

	// endPausesSQL makes the relays try streams at once, since they have room again.
	endPausesSQL = `update stream_pauses set until = now() where stream = any($1::text[]) and until > now()`
)

// BeginTrim reports whether this instance shall trim the streams now. Among all instances this
// is every five minutes, every minute while a stream has an alert, and every 15 s while one
// accepts nothing.
func (st *Store) BeginTrim(ctx context.Context) (t Trim, due bool, err error) {
	var from int64
	err = st.db.Hot.QueryRow(ctx, beginTrimSQL, store.Unprepared, trimEveryFull.Seconds(), TrimEveryAlert.Seconds(), trimEvery.Seconds()).Scan(&due, &from, &t.Refused)
	if errors.Is(err, pgx.ErrNoRows) {
		err = store.ErrNoJob("events")
	}
	t.From = uint64(from)
	return t, due, store.Wrap("begin trim", err)
}

// EndTrim records where the next scan of the stream of messages begins, and which streams have
// room again.
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
	return store.Wrap("end trim", err)
}

// SetInboxesTrimmed records that messages to users are about to be removed from the stream of
// users. to has the last removed sequence number of each user, last is that of the stream, and
// kept is how long the stream keeps a message at most.
func (st *Store) SetInboxesTrimmed(ctx context.Context, to map[string]uint64, last uint64, kept time.Duration) error {
	users, seqs := slices.Sorted(maps.Keys(to)), make([]int64, len(to)) // sorted, so that two calls never deadlock
	for i, user := range users {
		seqs[i] = int64(to[user])
	}
	_, err := st.db.Hot.Exec(ctx, setInboxesTrimmedSQL, store.Unprepared, users, seqs, int64(last), kept.Seconds())
	return store.Wrap("record trimmed inboxes", err)
}

// InboxTrimmed returns the sequence number up to which messages to a user were removed from the
// stream of users; 0 = none.
func (st *Store) InboxTrimmed(ctx context.Context, user string) (to uint64, err error) {
	var n int64
	err = st.db.Hot.QueryRow(ctx, inboxTrimmedSQL, user).Scan(&n)
	return uint64(n), store.Wrap("trimmed inbox", err)
}

const finishedMessagesSQL = `
select id, status = 2 or abandoned from message_done where id = any($1::uuid[])
union all
select id, status = 2 or abandoned from archived_messages where id = any($1::uuid[])`

// Finished returns the final ones of the messages: true where all consumers have confirmed or
// the message was abandoned, false where it was final once a stream had stored it.
func (st *Store) Finished(ctx context.Context, ids []task.ID) (map[task.ID]bool, error) {
	finished := make(map[task.ID]bool, len(ids))
	var id task.ID
	var confirmed bool
	err := store.QueryEach(ctx, st.db.Hot, finishedMessagesSQL, []any{ids}, []any{&id, &confirmed}, func() {
		finished[id] = confirmed
	})
	return finished, store.Wrap("finished messages", err)
}
