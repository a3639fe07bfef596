package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

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

// owners has what the tests themselves look and change with, by *DB.
var owners sync.Map

// owner may do anything in the database of db.
func (db *DB) owner(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, known := owners.Load(db)
	require.True(t, known, "open it with openAt")
	return pool.(*pgxpool.Pool)
}

// owner is a connection that may do anything.
func owner(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
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

func keyed(key, body string) func(*Submission) {
	return func(s *Submission) {
		hash := task.KeyHash(s.CallerID, "sms", key)
		s.Key, s.Draft.Content = &hash, body
		s.Fingerprint, _ = task.Fingerprint(body)
	}
}

func (db *DB) mustSubmit(t *testing.T, subs ...*Submission) []Submitted {
	t.Helper()
	outs, errs := db.Submit(subs)
	for _, err := range errs {
		require.NoError(t, err)
	}
	return outs
}

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

func TestATaskLivesFromSubmitThroughClaimToItsReport(t *testing.T) {
	t.Parallel()
	for name, pooler := range map[string]bool{"directly": false, "as behind a pooler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wholeLife(t, openAt(t, sandbox.NewDatabase(t), func(c *Config) { c.Pooler = pooler }))
		})
	}
}

func wholeLife(t *testing.T, db *DB) {
	empty := message(func(s *Submission) { s.Draft = task.Draft{} })
	require.Equal(t, task.CodeNoDefault, db.mustSubmit(t, empty)[0].Refused.Code)
	again := message(keyed("k", "other queue"), func(s *Submission) { s.Queue, s.Metadata = "q", []byte(`{"a":1}`) })
	require.False(t, db.mustSubmit(t, again)[0].Replayed)
	again.ID = task.NewID()
	require.True(t, db.mustSubmit(t, again)[0].Replayed)

	s := message()
	out := db.mustSubmit(t, s)[0]
	require.Equal(t, Submitted{ID: s.ID, State: task.Pending, Text: "hello"}, out)

	claimed := db.mustClaim(t, "app", 10)
	require.Len(t, claimed, 1)
	require.Equal(t, s.ID, claimed[0].ID)
	require.Equal(t, "13800138000", claimed[0].Phone)
	require.Equal(t, "hello", claimed[0].Content)
	require.Empty(t, db.mustClaim(t, "other", 10), "a claimed task is nobody else's")

	r := task.Report{TaskID: s.ID, AppID: "app", ClaimID: claimed[0].ClaimID, Outcome: task.SentOK}
	require.Equal(t, task.Applied, db.mustReport(t, r).Verdict)
	require.Equal(t, task.Already, db.mustReport(t, r).Verdict)
	d := db.mustTask(t, s.ID)
	require.Equal(t, task.Succeeded, d.State)
	require.False(t, d.SentAt.IsZero())
	require.Equal(t, 1, db.count(t, `select count(*) from task_live`), "the one of the other queue")
	require.Equal(t, 1, db.count(t, `select count(*) from receive_logs where task_id = $1 and status_code = 200`, s.ID))
	require.Equal(t, 1, db.count(t, `select count(*) from send_logs where task_id = $1 and claim_id = $2`, s.ID, claimed[0].ClaimID))
	require.Equal(t, 2, db.count(t, `select count(*) from report_logs where task_id = $1`, s.ID))
	require.Equal(t, 1, db.count(t, `select count(*) from sms_tasks where task_id = $1 and status = 2 and processing_app_id = 'app'`, s.ID))
}

// onlyWithFaults leaves a test that waits long to make faults.
func onlyWithFaults(t *testing.T) {
	t.Helper()
	if os.Getenv("SENDONCE_FAULT_SECONDS") == "" {
		t.Skip("make faults runs it")
	}
}

// A host that loses its power ends no connection.
func TestIdleConnectionsToAHostThatVanishedAreGivenUpBeforeTheCallIs(t *testing.T) {
	t.Parallel()
	onlyWithFaults(t)
	config, err := pgx.ParseConfig(sandbox.NewDatabase(t))
	require.NoError(t, err)
	lost, other := sandbox.NewProxy(t, config.ConnString()), sandbox.NewProxy(t, config.ConnString())
	a, err := pgx.ParseConfig(lost.URL())
	require.NoError(t, err)
	b, err := pgx.ParseConfig(other.URL())
	require.NoError(t, err)
	db := openAt(t, fmt.Sprintf("host=%s,%s port=%d,%d user=%s password='%s' dbname=%s sslmode=disable", a.Host, b.Host, a.Port, b.Port, a.User, a.Password, a.Database))
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { _, _ = db.hot.Exec(t.Context(), "select pg_sleep(0.2)") })
	}
	all.Wait()
	require.EqualValues(t, 2, db.hot.Stat().IdleConns())
	<-time.After(1100 * time.Millisecond) // the pool trusts a younger one
	lost.Stall()
	defer lost.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), flushLimit)
	defer cancel()
	require.NoError(t, db.Ping(ctx))
}
