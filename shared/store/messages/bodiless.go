package messages

import (
	"context"

	"github.com/sendonce/sendonce/shared/store"
)

// Only a compromised function leaves rows of message_live without a body. Many such rows at the head of an
// index would fill the batches. A relay that finds such a row searches the first 1,000 rows of each caller and
// stream; a claim of posts searches the first 1,000 rows of each caller. Each removes up to 20,000 rows at once.
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

// removeBodiless runs one of the statements above, and reports whether it removed a row.
func removeBodiless(ctx context.Context, db store.Execer, sql string) (removed bool, err error) {
	tag, err := db.Exec(ctx, sql)
	return tag.RowsAffected() > 0, err
}
