package messages

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/store"
)

// Held has the callers whose messages to a nearly full stream wait in the database (see Hold).
type Held struct {
	Streams []string
	Callers []int64 // one for each of Streams
}

// HoldPeriod is shorter than the time for which the streams recognise repeats: a send whose result was lost can be held for most of it
// and is then still recognised.
const HoldPeriod = 90 * time.Second

// holdSQL returns the callers of each account (see Caller.Account) that used more of a stream within about HoldPeriod ($3) than is
// free now. stream_usage counts by minute.
const holdSQL = `
select stream, member.id from (
    select stream, coalesce(c.account_id, caller_id) as account
    from stream_usage left join callers c on c.id = caller_id join unnest($1::text[], $2::bigint[]) as s (stream, free) using (stream)
    where since > now() - make_interval(secs => $3) and since <= now() group by 1, 2 having sum(bytes) > min(free)
) u cross join lateral (select account as id union select id from callers where account_id = account) member`

// makeTrimDueSQL makes a trim of the streams due (BeginTrim), unless the last one began a short time ago.
const makeTrimDueSQL = `update upkeep set begun_at = 'epoch' where what = 'events' and begun_at > 'epoch' and begun_at < now() - make_interval(secs => $1)`

// Hold returns the callers that must not send more to nearly full streams now, given the free bytes of each of these streams: the
// callers of accounts that used more of the stream lately (HoldPeriod) than is free. So any number of accounts together leave room
// for the messages of others: the fuller a stream is, the less an account needs to have used to be held. If callers are held, Hold
// makes a trim due, at most every 15 s (trimDue).
func (st *Store) Hold(ctx context.Context, free map[string]int64) (held Held, trimDue bool, err error) {
	streams := slices.Collect(maps.Keys(free))
	bytes := store.Column(streams, func(name string) int64 { return free[name] })
	var stream string
	var caller int64
	err = store.QueryEach(ctx, st.db.Hot, holdSQL, []any{store.Unprepared, streams, bytes, HoldPeriod.Seconds()}, []any{&stream, &caller}, func() {
		held.Streams, held.Callers = append(held.Streams, stream), append(held.Callers, caller)
	})
	if err == nil && len(held.Streams) > 0 {
		tag, updateErr := st.db.Hot.Exec(ctx, makeTrimDueSQL, store.Unprepared, trimEveryPaused.Seconds())
		trimDue, err = tag.RowsAffected() > 0, updateErr
	}
	return held, trimDue, store.Wrap("hold messages of callers that fill a stream", err)
}
