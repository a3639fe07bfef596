package messages

import (
	"cmp"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
)

// StreamAccepted is the name in stream_usage of the stream of accepted messages, whose own name
// is configurable.
const StreamAccepted = "ACCEPTED"

// StreamOverhead is about how many bytes a stream stores for a message besides its data, such as subject and
// headers.
const StreamOverhead = 500

// streamUsage is how many bytes each stream stored for each caller.
type streamUsage map[usageKey]int64

type usageKey struct {
	stream string
	caller int64 // in streamShares an account
}

// add counts a message that a stream stored, if callers have a share of this stream.
func (u streamUsage) add(stream string, caller int64, data int) {
	switch stream {
	case msg.StreamMessages, msg.StreamUsers, StreamAccepted:
		u[usageKey{stream, caller}] += int64(data) + StreamOverhead
	}
}

// addUsageSQL adds to the rows of this minute. Its input is sorted, so that two transactions never deadlock.
const addUsageSQL = `
insert into stream_usage as u (since, stream, caller_id, bytes)
select date_trunc('minute', now()), * from unnest($1::text[], $2::bigint[], $3::bigint[]) as t (stream, caller_id, bytes)
on conflict (since, stream, caller_id) do update set bytes = least(u.bytes, 1000000000000000000) + excluded.bytes`

// queueStreamUsage adds the statement that stores usage. Call it at the end of a transaction, because other
// transactions with messages of the same caller wait for its rows.
func queueStreamUsage(batch *pgx.Batch, usage streamUsage) {
	if len(usage) == 0 {
		return
	}
	keys := slices.SortedFunc(maps.Keys(usage), func(a, b usageKey) int {
		return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.caller, b.caller))
	})
	batch.Queue(addUsageSQL, store.Column(keys, func(k usageKey) string { return k.stream }), store.Column(keys, func(k usageKey) int64 { return k.caller }),
		store.Column(keys, func(k usageKey) int64 { return usage[k] }))
}
