package storetest

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) MustClaim(t *testing.T, app string, limit int) []tasks.Claimed {
	t.Helper()
	claimed, _, err := db.Tasks.Claim(t.Context(), tasks.ClaimRequest{Queue: task.DefaultQueue, AppID: app, Limit: limit, Lease: time.Minute, Request: []byte(`{}`)})
	require.NoError(t, err)
	return claimed
}

func (db *DB) MustReport(t *testing.T, r task.Report) tasks.Reported {
	t.Helper()
	outs, errs := db.Tasks.Report([]*tasks.Report{{Report: r, Request: []byte(`{}`)}})
	require.NoError(t, errs[0])
	return outs[0]
}

func (db *DB) MustSubmit(t *testing.T, subs ...*tasks.Submission) []tasks.Submitted {
	t.Helper()
	outs, errs := db.Tasks.Submit(subs)
	for _, err := range errs {
		require.NoError(t, err)
	}
	return outs
}

func (db *DB) MustTask(t *testing.T, id task.ID) tasks.Detail {
	t.Helper()
	d, err := db.Tasks.ByID(t.Context(), id)
	require.NoError(t, err)
	return d
}

// Count is the result of a counting query.
func (db *DB) Count(t *testing.T, sql string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.Owner(t).QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// Submission is a plain submission; change edits it.
func Submission(change ...func(*tasks.Submission)) *tasks.Submission {
	s := &tasks.Submission{
		ID: task.NewID(), Queue: task.DefaultQueue, Priority: task.DefaultPriority, MaxRetries: 3,
		Phone: "13800138000", Draft: task.Draft{Content: "hello"}, RequestID: "r", Request: []byte(`{"phone_number":"13800138000"}`),
	}
	for _, c := range change {
		c(s)
	}
	return s
}

// Owner is a connection that may do anything.
func Owner(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (db *DB) Claim(t *testing.T, change ...func(*tasks.ClaimRequest)) []tasks.Claimed {
	t.Helper()
	req := tasks.ClaimRequest{Queue: task.DefaultQueue, AppID: "app", Limit: 10, Lease: time.Minute, Request: []byte(`{}`)}
	for _, c := range change {
		c(&req)
	}
	claimed, _, err := db.Tasks.Claim(t.Context(), req)
	require.NoError(t, err)
	return claimed
}

// ExpireLeases ends every live lease, as if their time had passed.
func (db *DB) ExpireLeases(t *testing.T) {
	t.Helper()
	_, err := db.Owner(t).Exec(t.Context(), `update task_live set due_at = now() - interval '1 second' where state = 2`)
	require.NoError(t, err)
}

// RetryBusy calls do again while it returns a refusal with RetryAfter, as callers do.
func RetryBusy(do func() error) error {
	for {
		err := do()
		var refusal *task.Error
		if !errors.As(err, &refusal) || refusal.RetryAfter == 0 {
			return err
		}
	}
}

func Keyed(key, body string) func(*tasks.Submission) {
	return func(s *tasks.Submission) {
		hash := task.KeyHash(s.CallerID, "sms", key)
		s.Key, s.Draft.Content = &hash, body
		s.Fingerprint, _ = task.Fingerprint(body)
	}
}

// HoldLock keeps rows locked until the test's end, or until release is called.
func HoldLock(t *testing.T, url, sql string, args ...any) (release func()) {
	t.Helper()
	tx, err := Owner(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return func() { require.NoError(t, tx.Commit(t.Context())) }
}

func IsWaiting(t *testing.T, conn *pgx.Conn) bool {
	var yes bool
	err := conn.QueryRow(t.Context(), `select exists(select from pg_locks l join pg_stat_activity a using (pid) where not l.granted and a.datname = current_database())`).Scan(&yes)
	return err == nil && yes
}

func (db *DB) MustCount(t *testing.T) tasks.Statistics {
	t.Helper()
	s, err := db.Tasks.Statistics(t.Context())
	require.NoError(t, err)
	return s
}

// InsertClosedDaySQL closes a day ($1) that had so many SMS succeed ($2) and fail ($3).
const InsertClosedDaySQL = `insert into task_totals (day, succeeded, failed, subscribe_succeeded, subscribe_failed) values ($1, $2, $3, 0, 0)`

// Explain gives the plan of a query for these very parameters, made after the
// statement setup in one transaction.
func Explain(t *testing.T, pool *pgxpool.Pool, setup, sql string, args ...any) (plan string) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), setup); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), "explain "+sql, append([]any{store.Unprepared}, args...)...)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan = strings.Join(lines, "\n")
		return err
	}))
	return plan
}

// OnlyWithFaults leaves a test that waits long to make faults.
func OnlyWithFaults(t *testing.T) {
	t.Helper()
	if os.Getenv("SENDONCE_FAULT_SECONDS") == "" {
		t.Skip("make faults runs it")
	}
}
