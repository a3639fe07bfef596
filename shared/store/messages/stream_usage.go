package messages

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/quota"
)

// StreamAccepted is the name in stream_usage of the stream of accepted messages, whose own name
// is configurable.
const StreamAccepted = "ACCEPTED"

// StreamOverhead is about how many bytes a stream stores for a message beside its data, such as subject and
// headers.
const StreamOverhead = 500

// streamUsage is how many bytes each stream stored for each caller.
type streamUsage map[usageKey]int64

type usageKey struct {
	stream string
	caller int64
}

// add counts a message that a stream stored, if the stream is one of Sendonce's own.
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

const (
	sharesEvery = 2 * time.Second
	sharesDelay = 500 * time.Millisecond // before a query, so that the first call of a process does not wait for a second connection
	shareRetry  = time.Minute
)

// sharesExceededSQL returns the accounts (see Caller.Account) whose messages of the last 15 minutes take more
// than a quarter of a stream of which all accounts together take more than half. A stream of size 0 has no limit.
const sharesExceededSQL = `
select stream, caller_id from (
    select stream, coalesce(c.account_id, caller_id) as caller_id, sum(bytes) as own, sum(sum(bytes)) over (partition by stream) as total
    from stream_usage left join callers c on c.id = caller_id where since > now() - interval '15 minutes' group by 1, 2
) u join unnest($1::text[], $2::bigint[]) as s (stream, size) using (stream)
where size > 0 and total > size / 2 and own > size / 4`

// streamShares caches which accounts use more than their share of a stream. It is read again every two seconds
// while messages arrive.
type streamShares struct {
	query func(ctx context.Context) (map[usageKey]bool, error)

	mu         sync.Mutex
	over       map[usageKey]bool // by stream and account
	next       time.Time         // the earliest next query
	refreshing bool
}

func (s *streamShares) exceeded(account int64, streams []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.refreshing && time.Now().After(s.next) {
		s.refreshing = true
		time.AfterFunc(sharesDelay, s.refresh)
	}
	for _, stream := range streams {
		if s.over[usageKey{stream, account}] {
			return true
		}
	}
	return false
}

func (s *streamShares) refresh() {
	ctx, cancel := context.WithTimeout(context.Background(), quota.CountTimeout)
	defer cancel()
	over, err := s.query(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshing, s.next = false, time.Now().Add(sharesEvery)
	if err == nil {
		s.over = over
	}
}

// sharesExceeded queries the accounts that use more than their share of streams with these sizes in bytes.
func (st *Store) sharesExceeded(ctx context.Context, sizes map[string]int64) (over map[usageKey]bool, err error) {
	if len(sizes) == 0 {
		return nil, nil
	}
	streams := slices.Collect(maps.Keys(sizes))
	bytes := store.Column(streams, func(name string) int64 { return sizes[name] })
	over = map[usageKey]bool{}
	var key usageKey
	err = store.QueryEach(ctx, st.db.Hot, sharesExceededSQL, []any{store.Unprepared, streams, bytes}, []any{&key.stream, &key.caller}, func() {
		over[key] = true
	})
	return over, err
}
