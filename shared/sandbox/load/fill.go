package load

import (
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
)

// AfterFilled is greater than every id that FillTasks inserts, and less than the id of every submitted task: the id of
// a submitted task begins with the time.
const AfterFilled = "00010000-0000-0000-0000-000000000000"

// fillSQL inserts finished tasks with the numbers from $1 to $2, and their submission keys. The tasks have no rows in the log
// tables, as if the partitions of their month were dropped.
const fillSQL = `
with n as (
    select ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid as id, n from generate_series($1::bigint, $2::bigint) n
), t as (
    insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, created_at)
    select id, 0, 'default', 5, 3, 0, (13000000000 + n)::text, 'Your verification code is 285713', now() - interval '1 day' from n
), d as (
    insert into task_done (id, status, reason, retry_count, ended, claim_id, app_id, reported_at, sent_at)
    select id, 2 /* succeeded */, 0, 0, 5 /* by a report of success */, n, 'bench', now() - interval '1 day', now() - interval '1 day' from n
)
insert into submission_keys (key, fingerprint, id)
select gen_random_uuid(), gen_random_uuid(), id from n`

const fillRows = 250_000 // limit of the tasks that one statement inserts

// FillTasks inserts finished tasks, and prints its progress. Call it once for each database: a second call would insert the same
// ids.
func FillTasks(ctx context.Context, conn *pgx.Conn, rows int, progress io.Writer) error {
	for first := 1; first <= rows; first += fillRows {
		last := min(first+fillRows-1, rows)
		if _, err := conn.Exec(ctx, fillSQL, first, last); err != nil {
			return err
		}
		fmt.Fprintf(progress, "%d of %d finished tasks\n", last, rows)
	}
	for _, sql := range []string{"vacuum analyze tasks, task_done, submission_keys", "checkpoint"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}
