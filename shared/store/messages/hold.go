package messages

import (
	"context"
	"maps"
	"slices"

	"github.com/sendonce/sendonce/shared/store"
)

// Held has the callers whose messages to a stream must wait in the database, because they have filled most of it.
type Held struct {
	Streams []string
	Callers []int64 // one for each of Streams
}

// holdSQL returns the callers of each account (see Caller.Account) that has used more of a stream within the last 15 minutes
// than is free now.
const holdSQL = `
select stream, member.id from (
    select stream, coalesce(c.account_id, caller_id) as account
    from stream_usage left join callers c on c.id = caller_id join unnest($1::text[], $2::bigint[]) as s (stream, free) using (stream)
    where since > now() - interval '15 minutes' and since <= now() group by 1, 2 having sum(bytes) > min(free)
) u cross join lateral (select account as id union select id from callers where account_id = account) member`

// makeTrimDueSQL makes a trim of the streams due (BeginTrim), unless the last one began a short time ago.
const makeTrimDueSQL = `update upkeep set begun_at = 'epoch' where what = 'events' and begun_at > 'epoch' and begun_at < now() - make_interval(secs => $1)`

// Hold returns the callers that must not send more to nearly full streams, given the free bytes of each of these streams: the callers of accounts
// that have used more of the stream within the last 15 minutes than is free. So any number of accounts together leave room for the messages of
// others: the fuller a stream is, the less an account needs to have used to be held. If callers are held, Hold makes a trim due,
// at most every 15 s.
func (st *Store) Hold(ctx context.Context, free map[string]int64) (held Held, err error) {
	if len(free) == 0 {
		return held, nil
	}
	streams := slices.Collect(maps.Keys(free))
	bytes := store.Column(streams, func(name string) int64 { return free[name] })
	var stream string
	var caller int64
	err = store.QueryEach(ctx, st.db.Hot, holdSQL, []any{store.Unprepared, streams, bytes}, []any{&stream, &caller}, func() {
		held.Streams, held.Callers = append(held.Streams, stream), append(held.Callers, caller)
	})
	if err == nil && len(held.Streams) > 0 {
		_, err = st.db.Hot.Exec(ctx, makeTrimDueSQL, store.Unprepared, trimEveryPaused.Seconds())
	}
	return held, store.Wrap("hold messages of callers that fill a stream", err)
}
