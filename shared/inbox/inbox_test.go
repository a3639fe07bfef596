package inbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// database creates the database of a receiving service: the inbox and a table of effects.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), sandbox.NewEmptyDatabase(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	exec(t, pool, DDL)
	exec(t, pool, "CREATE TABLE effects (message_id text NOT NULL)")
	return pool
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func count(t *testing.T, db *pgxpool.Pool, sql string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM "+sql, args...).Scan(&n))
	return n
}

func begin(t *testing.T, db *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func effectOf(tx pgx.Tx, id string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", id)
		return err
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()

	t.Run("a duplicate has no effect and returns no error", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		for _, want := range []bool{true, false, false} {
			tx := begin(t, db)
			first, err := Once(t.Context(), tx, "points", "m1", effectOf(tx, "m1"))
			require.NoError(t, err)
			require.Equal(t, want, first)
			var hasID bool
			require.NoError(t, tx.QueryRow(t.Context(), `select pg_current_xact_id_if_assigned() is not null`).Scan(&hasID))
			require.True(t, hasID, "the commit waits for the synchronous standby only if the transaction has an id")
			require.NoError(t, tx.Commit(t.Context()))
		}
		require.Equal(t, 1, count(t, db, "effects"))
	})

	t.Run("each consumer processes the message", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		for _, consumer := range []string{"points", "stock"} {
			tx := begin(t, db)
			first, err := Once(t.Context(), tx, consumer, "m1", effectOf(tx, "m1"))
			require.NoError(t, err)
			require.True(t, first)
			require.NoError(t, tx.Commit(t.Context()))
		}
		require.Equal(t, 2, count(t, db, "effects"))
	})

	t.Run("a failed effect stores nothing, even if the caller commits", func(t *testing.T) {
		t.Parallel()
		db, broken := database(t), errors.New("no such account")
		tx := begin(t, db)
		_, err := Once(t.Context(), tx, "points", "m1", func(ctx context.Context) error {
			require.NoError(t, effectOf(tx, "m1")(ctx))
			return broken
		})
		require.ErrorIs(t, err, broken)
		require.ErrorIs(t, tx.Commit(t.Context()), pgx.ErrTxClosed)
		require.Zero(t, count(t, db, "message_inbox"))
		require.Zero(t, count(t, db, "effects"))
	})

	t.Run("an effect that ends the transaction is an error", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		for _, end := range []string{"ROLLBACK", "COMMIT"} {
			tx := begin(t, db)
			_, err := Once(t.Context(), tx, "points", end, func(ctx context.Context) error {
				_, err := tx.Exec(ctx, end)
				return err
			})
			require.ErrorContains(t, err, "ended the transaction", end)
		}
	})

	t.Run("a cancelled effect in a savepoint stores nothing", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		outer := begin(t, db)
		inner, err := outer.Begin(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		_, err = Once(ctx, inner, "points", "m1", func(ctx context.Context) error {
			cancel()
			return ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, outer.Commit(t.Context()))
		require.Zero(t, count(t, db, "message_inbox"))
	})

	t.Run("an error is not a duplicate", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		for name, id := range map[string]string{"an empty id": "", "an id that Postgres cannot store": "a\x00b"} {
			tx := begin(t, db)
			first, err := Once(t.Context(), tx, "points", id, effectOf(tx, id))
			require.Error(t, err, name)
			require.False(t, first, name)
			require.Error(t, tx.Commit(t.Context()), name)
		}
		require.Zero(t, count(t, db, "effects"))
	})
}

func TestConcurrentDuplicateWaits(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		end     func(ctx context.Context, tx pgx.Tx) error // of the first call
		wantRun bool                                       // of the effect of the second call
	}{
		"no effect if the first commits":     {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, false},
		"effect if the first is rolled back": {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			tx1, tx2 := begin(t, db), begin(t, db)
			ran, err := Once(t.Context(), tx1, "points", "m1", effectOf(tx1, "m1"))
			require.NoError(t, err)
			require.True(t, ran)

			type reply struct {
				ran bool // the effect
				err error
			}
			replies := make(chan reply, 1)
			go func() {
				ran, err := Once(t.Context(), tx2, "points", "m1", effectOf(tx2, "m1"))
				replies <- reply{ran, err}
			}()
			waiting := "pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
			require.Eventually(t, func() bool { return count(t, db, waiting) == 1 }, time.Minute, 5*time.Millisecond)
			require.Empty(t, replies)

			require.NoError(t, test.end(t.Context(), tx1))
			second := <-replies
			require.NoError(t, second.err)
			require.Equal(t, test.wantRun, second.ran)
			require.NoError(t, tx2.Commit(t.Context()))
			require.Equal(t, 1, count(t, db, "effects"))
		})
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	const fill = "INSERT INTO message_inbox SELECT $1, i::text, now() - $2::interval FROM generate_series(1, $3::int) i"

	t.Run("a row whose message may be sent again cannot be pruned", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		exec(t, db, fill, "points", 10*365*24*time.Hour, 1)
		_, err := Prune(t.Context(), db, "points", MinKeep-1, 0)
		require.ErrorContains(t, err, MinKeep.String())
		_, err = Prune(t.Context(), db, "points", 60*24*time.Hour, 90*24*time.Hour)
		require.ErrorContains(t, err, "2160h0m0s")
		require.Equal(t, 1, count(t, db, "message_inbox"))
	})

	t.Run("all old rows of one consumer are deleted, in batches", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		exec(t, db, fill, "points", MinKeep+time.Hour, 2*pruneBatch+1)
		exec(t, db, fill, "stock", MinKeep+time.Hour, 1)
		exec(t, db, "INSERT INTO message_inbox VALUES ('points', 'young', now() - $1::interval)", MinKeep-time.Hour)
		n, err := Prune(t.Context(), db, "points", MinKeep, MinKeep)
		require.NoError(t, err)
		require.EqualValues(t, 2*pruneBatch+1, n)
		require.Equal(t, 1, count(t, db, "message_inbox WHERE consumer = 'points' AND message_id = 'young'"))
		require.Equal(t, 2, count(t, db, "message_inbox"))
	})

	t.Run("locked rows are skipped", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		exec(t, db, fill, "points", MinKeep+time.Hour, 3)
		tx := begin(t, db)
		_, err := tx.Exec(t.Context(), "SELECT FROM message_inbox WHERE message_id = '2' FOR UPDATE")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		n, err := Prune(ctx, db, "points", MinKeep, 0)
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
	})
}

func TestDDLIsIdempotent(t *testing.T) {
	t.Parallel()
	db := database(t)
	exec(t, db, DDL)
}
