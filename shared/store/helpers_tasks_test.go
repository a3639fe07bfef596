package store

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) mustClaim(t *testing.T, app string, limit int) []Claimed {
	t.Helper()
	claimed, _, err := db.Claim(t.Context(), ClaimRequest{Queue: task.DefaultQueue, AppID: app, Limit: limit, Lease: time.Minute, Request: []byte(`{}`)})
	require.NoError(t, err)
	return claimed
}

func (db *DB) mustReport(t *testing.T, r task.Report) Reported {
	t.Helper()
	outs, errs := db.Report([]*Report{{Report: r, Request: []byte(`{}`)}})
	require.NoError(t, errs[0])
	return outs[0]
}

func (db *DB) mustSubmit(t *testing.T, subs ...*Submission) []Submitted {
	t.Helper()
	outs, errs := db.Submit(subs)
	for _, err := range errs {
		require.NoError(t, err)
	}
	return outs
}

func (db *DB) mustTask(t *testing.T, id task.ID) Detail {
	t.Helper()
	d, err := db.Task(t.Context(), id)
	require.NoError(t, err)
	return d
}

// count is the answer to a counting query.
func (db *DB) count(t *testing.T, sql string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.owner(t).QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// owner may do anything in the database of db.
func (db *DB) owner(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, known := owners.Load(db)
	require.True(t, known, "open it with openAt")
	return pool.(*pgxpool.Pool)
}

// message is a plain submission; change edits it.
func message(change ...func(*Submission)) *Submission {
	s := &Submission{
		ID: task.NewID(), Queue: task.DefaultQueue, Priority: task.DefaultPriority, MaxRetries: 3,
		Phone: "13800138000", Draft: task.Draft{Content: "hello"}, RequestID: "r", Request: []byte(`{"phone_number":"13800138000"}`),
	}
	for _, c := range change {
		c(s)
	}
	return s
}

// open gives a store on a fresh database, logged in as the functions are.
func open(t *testing.T) *DB {
	t.Helper()
	return openAt(t, sandbox.NewDatabase(t))
}

func openAt(t *testing.T, url string, change ...func(*Config)) *DB {
	t.Helper()
	cfg := Config{URL: url, Roles: Roles(sandbox.Roles), StatusOf: func(string) int { return 400 }}
	var err error
	cfg.Keys, err = ParseKeys(sandbox.EncryptionKey)
	require.NoError(t, err)
	for _, c := range change {
		c(&cfg)
	}
	db, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	as, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(as.Close)
	owners.Store(db, as)
	t.Cleanup(func() { owners.Delete(db) })
	return db
}

// owner is a connection that may do anything.
func owner(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// owners has what the tests themselves look and change with, by *DB.
var owners sync.Map

func (db *DB) claim(t *testing.T, change ...func(*ClaimRequest)) []Claimed {
	t.Helper()
	req := ClaimRequest{Queue: task.DefaultQueue, AppID: "app", Limit: 10, Lease: time.Minute, Request: []byte(`{}`)}
	for _, c := range change {
		c(&req)
	}
	claimed, _, err := db.Claim(t.Context(), req)
	require.NoError(t, err)
	return claimed
}

// lapse ends every live lease, as time would.
func (db *DB) lapse(t *testing.T) {
	t.Helper()
	_, err := db.owner(t).Exec(t.Context(), `update task_live set due_at = now() - interval '1 second' where state = 2`)
	require.NoError(t, err)
}

// asAsked calls do again for as long as its answer asks for the same call later,
// as callers do: another holds the row, or the machine is slow.
func asAsked(do func() error) error {
	for {
		err := do()
		var told *task.Error
		if !errors.As(err, &told) || told.RetryAfter == 0 {
			return err
		}
	}
}

func keyed(key, body string) func(*Submission) {
	return func(s *Submission) {
		hash := task.KeyHash(s.CallerID, "sms", key)
		s.Key, s.Draft.Content = &hash, body
		s.Fingerprint, _ = task.Fingerprint(body)
	}
}

// hold keeps rows locked until the test's end, or until release is called.
func hold(t *testing.T, url, sql string, args ...any) (release func()) {
	t.Helper()
	tx, err := owner(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return func() { require.NoError(t, tx.Commit(t.Context())) }
}

func waiting(t *testing.T, conn *pgx.Conn) bool {
	var yes bool
	err := conn.QueryRow(t.Context(), `select exists(select from pg_locks l join pg_stat_activity a using (pid) where not l.granted and a.datname = current_database())`).Scan(&yes)
	return err == nil && yes
}

func (db *DB) mustCount(t *testing.T) Statistics {
	t.Helper()
	s, err := db.Statistics(t.Context())
	require.NoError(t, err)
	return s
}

// insertClosedDay closes a day ($1) that had so many SMS succeed ($2) and fail ($3).
const insertClosedDay = `insert into task_totals (day, succeeded, failed, subscribe_succeeded, subscribe_failed) values ($1, $2, $3, 0, 0)`

// explain gives the plan of a query for these very parameters, made after the
// statement setup in one transaction.
func explain(t *testing.T, pool *pgxpool.Pool, setup, sql string, args ...any) (plan string) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), setup); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), "explain "+sql, append([]any{unprepared}, args...)...)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan = strings.Join(lines, "\n")
		return err
	}))
	return plan
}

// onlyWithFaults leaves a test that waits long to make faults.
func onlyWithFaults(t *testing.T) {
	t.Helper()
	if os.Getenv("SENDONCE_FAULT_SECONDS") == "" {
		t.Skip("make faults runs it")
	}
}
