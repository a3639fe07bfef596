package store

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// ratesAreTrue compares TemplateRates with the rows, for several beginnings and
// callers.
func ratesAreTrue(t *testing.T, db *DB, conn *pgx.Conn) {
	t.Helper()
	now := time.Now().UTC()
	midnight := now.Truncate(24 * time.Hour)
	for _, since := range []time.Time{
		{}, now.AddDate(0, 0, -4), midnight.AddDate(0, 0, -3), midnight, now.Add(-time.Minute), now.Add(time.Hour),
	} {
		for _, of := range []*int64{nil, new(int64(8))} {
			rows, err := conn.Query(t.Context(), truth, since, of)
			require.NoError(t, err)
			want, err := pgx.CollectRows(rows, pgx.RowToStructByPos[TemplateRate])
			require.NoError(t, err)
			require.ElementsMatch(t, want, db.mustRates(t, since, of), "since %v", since)
		}
	}
}

func TestTemplateRatesAreThoseOfTheRows(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := openAt(t, url), owner(t, url)
	ratesAreTrue(t, db, conn)
	_, err := conn.Exec(t.Context(), `
		insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid,
			message_data, caller_id, task_id, send_status, send_time)
		select 'x', 'TYPE_' || n % 3, 'b', n, 9, 'o', '{}', 7 + n % 2, gen_random_uuid(), n % 3, now() - interval '6 days' * n / 500
		from generate_series(0, 499) n`)
	require.NoError(t, err)
	ratesAreTrue(t, db, conn)

	db.closeAt(t, time.Now().AddDate(0, 0, -4))
	require.Positive(t, db.count(t, `select count(*) from subscribe_totals where day < current_date - 4`), "the first closed day takes all before it")
	ratesAreTrue(t, db, conn)
	require.NoError(t, db.CloseDays(t.Context()))
	ratesAreTrue(t, db, conn)
	for _, change := range []string{
		`send_status = 1, send_time = now() where send_status = 2 and business_id % 4 = 0`,                     // sent again
		`send_status = 0 where send_status = 2 and business_id % 5 = 0`,                                        // being sent again
		`send_status = 1, send_time = send_time - interval '3 days' where send_status = 0`,                     // with a time that the sender gave
		`send_status = 2, send_time = send_time - interval '1 day' where send_time > now() - interval '1 day'`, // from an open day into a closed one
		`error_code = 'x'`,
	} {
		_, err = conn.Exec(t.Context(), `update subscribe_message_logs set `+change)
		require.NoError(t, err)
		ratesAreTrue(t, db, conn)
	}
	_, err = conn.Exec(t.Context(), `delete from task_totals where day = (select max(day) from task_totals)`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `delete from subscribe_totals where day > (select max(day) from task_totals)`)
	require.NoError(t, err)
	require.NoError(t, db.CloseDays(t.Context()))
	ratesAreTrue(t, db, conn)
	require.Zero(t, db.count(t, `select count(*) from (select from subscribe_totals group by day, caller_id, template_type having count(*) > 1) q`),
		"closing a day merges what adds up")

	before := db.mustRates(t, time.Time{}, nil)
	_, err = conn.Exec(t.Context(), `delete from subscribe_message_logs where send_time < current_date - 3`)
	require.NoError(t, err)
	require.Equal(t, before, db.mustRates(t, time.Time{}, nil), "what is archived stays counted")
}

// closeAt closes the UTC day of a time, whatever was closed before.
func (db *DB) closeAt(t *testing.T, at time.Time) {
	t.Helper()
	day := at.UTC().Truncate(24 * time.Hour)
	require.NoError(t, db.countDone(t.Context(), day, day, day.AddDate(0, 0, 1), time.Minute))
}

// A message that failed on a closed day is ordered and sent again.
func TestAResendMovesItsMessageOutOfAClosedDay(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := openAt(t, url), owner(t, url)
	db.subscribe(t, booking(1, `{}`))
	db.try(t, task.Report{Outcome: task.SentFailed})
	db.exec(t, `update subscribe_message_logs set send_time = now() - interval '3 days'`)
	db.exec(t, `update task_done set reported_at = now() - interval '3 days'`)
	db.exec(t, insertClosedDay, time.Now().AddDate(0, 0, -5), 0, 0)
	require.NoError(t, db.CloseDays(t.Context()))
	require.Equal(t, 1, db.count(t, `select count(*) from subscribe_totals where failed = 1`))
	require.True(t, db.subscribe(t, booking(1, `{}`)).Again)
	require.Equal(t, []TemplateRate{{"BOOKING_CONFIRM", 1, 0, 0}}, db.mustRates(t, time.Time{}, nil))
	db.try(t, task.Report{Outcome: task.SentOK})
	ratesAreTrue(t, db, conn)
	require.Equal(t, []TemplateRate{{"BOOKING_CONFIRM", 1, 1, 0}}, db.mustRates(t, time.Time{}, nil))
}
