package tasks_test

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// startPostgres starts a Postgres server. After loseStandby, its commits wait for a standby
// that is not connected. After restore, they do not wait.
func startPostgres(t *testing.T) (url string, loseStandby, restore func()) {
	t.Helper()
	if os.Getenv("DATABASE_URL") != "" {
		t.Skip("the test changes settings of the server, and DATABASE_URL names a shared one")
	}
	server, err := sandbox.StartPostgres(t.Context(), sandbox.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	url = server.URL("postgres")
	conn := storetest.ConnectAsOwner(t, url)
	_, err = migrations.Up(t.Context(), conn, sandbox.Roles)
	require.NoError(t, err)
	set := func(names string) {
		for _, sql := range []string{"alter system set synchronous_standby_names = '" + names + "'", "select pg_reload_conf()"} {
			_, err := conn.Exec(context.Background(), sql)
			require.NoError(t, err)
		}
	}
	return url, func() {
		set("no_standby")
		require.Eventually(t, func() bool { // the server has loaded the setting
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			_, err := storetest.ConnectAsOwner(t, url).Exec(ctx, "select pg_logical_emit_message(true, 'test', '')")
			return err != nil
		}, time.Minute, time.Millisecond)
	}, func() { set("") }
}

// endWaiting ends the wait of the sessions that wait for a standby: it calls function, such as pg_cancel_backend(pid), for
// each. It reports whether there were any. Their commits are then visible, although no standby has them.
func endWaiting(t *testing.T, conn *pgx.Conn, function string) bool {
	t.Helper()
	var pid int
	err := conn.QueryRow(t.Context(), `with w as materialized (select pid from pg_stat_activity where wait_event = 'SyncRep')
		select pid from w where `+function).Scan(&pid)
	if !errors.Is(err, pgx.ErrNoRows) {
		require.NoError(t, err)
	}
	return err == nil
}

// A sender app sends the message after the task is marked as sending, so this mark must not be lost in a failover.
func TestMarkWaitsForStandbyAfterACancelledWait(t *testing.T) {
	t.Parallel()
	url, loseStandby, restore := startPostgres(t)
	db, observer := storetest.OpenAt(t, url), storetest.ConnectAsOwner(t, url)
	db.MustSubmit(t, storetest.Submission())
	claimed := db.ClaimAs(t, "app", 1)[0]
	loseStandby()
	returned := make(chan error, 1)
	go func() {
		_, err := db.Tasks.Extend(context.Background(), tasks.Extension{TaskID: claimed.ID, AppID: "app", Lease: time.Minute, Sending: true}, nil)
		returned <- err
	}()
	for range 2 {
		require.Eventually(t, func() bool { return endWaiting(t, observer, "pg_cancel_backend(pid)") || len(returned) > 0 }, time.Minute, 10*time.Millisecond)
	}
	require.Never(t, func() bool { return len(returned) > 0 }, 200*time.Millisecond, 10*time.Millisecond, "the call waits until a standby has its commit")
	restore()
	require.NoError(t, <-returned)
}

func TestResponseWaitsForStandby(t *testing.T) {
	t.Parallel()
	url, loseStandby, restore := startPostgres(t)
	db, observer := storetest.OpenAt(t, url), storetest.ConnectAsOwner(t, url)
	for range 3 {
		db.MustSubmit(t, storetest.Submission())
	}
	reported := db.ClaimAs(t, "app", 1)[0]
	sent, accepted := storetest.Message("sent"), storetest.Message("accepted")
	accepted.AcceptSeq, accepted.AcceptedAt = 1, time.Now()
	db.MustSave(t, sent)
	_, err := db.Messages.SaveAccepted(t.Context(), []*messages.Submission{accepted})
	require.NoError(t, err)
	db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted))
	var callers atomic.Int64
	for name, call := range map[string]func() error{
		"submit": func() error {
			_, errs := db.Tasks.Submit([]*tasks.Submission{storetest.Submission(storetest.Keyed("k", "x"))})
			return errs[0]
		},
		"claim": func() error {
			_, _, err := db.Tasks.Claim(context.Background(), claimRequest("app", 0, 1))
			return err
		},
		"report": func() error {
			_, err := db.Report(task.Report{TaskID: reported.ID, AppID: "app", ClaimID: reported.ClaimID, Outcome: task.SentOK})
			return err
		},
		"message": func() error {
			_, errs := db.Messages.Submit([]*messages.Submission{storetest.Message("m")})
			return errs[0]
		},
		"subscribe": func() error {
			_, err := db.Subscribe.Submit(context.Background(), storetest.Booking(1, `{}`))
			return err
		},
		"subscribe by several callers": func() error {
			s := storetest.Booking(2, `{}`)
			s.CallerID = callers.Add(1)
			_, err := db.Subscribe.Submit(context.Background(), s)
			return err
		},
		"purge": func() error { // after it, its caller removes the message from the stream
			for {
				saved, err := db.Messages.PurgeCandidates(context.Background(), 0, 1)
				if err == nil && len(saved) == 0 {
					err = errors.New("nothing is saved")
				}
				if task.CodeOf(err) != task.CodeServerBusy { // otherwise the session was terminated: try again
					return err
				}
			}
		},
		"confirm": func() error {
			r, _, err := db.Messages.Recipient(context.Background(), sent.ID, "points")
			switch {
			case err != nil:
			case r.Confirmed:
				err = db.Messages.AwaitReceipt(context.Background())
			default:
				_, err = db.Messages.Confirm(context.Background(), sent.ID, storetest.ConfirmationBy("points"))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			loseStandby()
			defer restore()
			returned := make(chan error, 2)
			try := func() {
				err := call()
				for task.CodeOf(err) == task.CodeKeyInFlight {
					err = call()
				}
				returned <- err
			}
			go try()
			for _, function := range []string{"pg_cancel_backend(pid)", "pg_terminate_backend(pid, 5000)", "pg_cancel_backend(pid)"} {
				require.Eventually(t, func() bool { return endWaiting(t, observer, function) || len(returned) > 0 }, time.Minute, 10*time.Millisecond)
				require.Empty(t, returned, "the call waits until a standby has its commit")
			}
			go try()
			require.Never(t, func() bool { return len(returned) > 0 }, 500*time.Millisecond, 10*time.Millisecond, "a repeat waits too")
			restore()
			require.NoError(t, <-returned)
			require.NoError(t, <-returned)
		})
	}
}
