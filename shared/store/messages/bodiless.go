package messages

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
)

// A row of message_live without a body was left by a function that was taken over. Many of them at
// the head of an index would fill the batches, so relay and deliver, when they find one, remove those
// among the first 1,000 rows of each caller and stream.
const (
	deleteFirstBodiless = ` limit 1000 for update skip locked
    ) head where not exists (select from messages where messages.id = head.id offset 0) limit 20000
)
delete from message_live where id = any (array(select id from bodiless))`

	removeBodilessDueSQL = DueStreams + `, bodiless as materialized (
    select head.id from s cross join lateral (
        select m.id from message_live m where m.remaining_sends > 0 and m.kind <> 1 and m.caller_id = s.caller_id and m.stream = s.stream
        order by m.next_at, m.id` + deleteFirstBodiless

	removeBodilessPostsSQL = PostSources + `, bodiless as materialized (
    select head.id from source s cross join lateral (
        select m.id from message_live m where m.remaining_sends > 0 and m.kind = 1 and m.caller_id = s.caller_id
        order by m.next_at` + deleteFirstBodiless
)

type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// removeBodiless runs one of the statements above, and reports whether it removed a row.
func removeBodiless(ctx context.Context, on executor, sql string) (removed bool, err error) {
	tag, err := on.Exec(ctx, sql)
	return tag.RowsAffected() > 0, err
}
