package store_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
)

func TestRelaysThatPauseAndResumeTheSameStreamsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into stream_pauses (stream, failures, reason, until) values ('A', 1, 'full', now()), ('B', 1, 'full', now())`)
	relay := func(resumed, paused string) <-chan error {
		states, failures, ended := store.StreamStates{}, int32(1), make(chan error, 1)
		for _, stream := range []string{resumed, paused} {
			states.AddRow(stream, 1, 10, &failures)
		}
		states.AddResult(resumed, storetest.Accepted)
		states.AddResult(paused, storetest.StreamFull)
		go func() {
			ended <- pgx.BeginFunc(t.Context(), db.Hot, func(tx pgx.Tx) error {
				var batch pgx.Batch
				states.Queue(&batch, new(store.Relayed))
				return tx.SendBatch(t.Context(), &batch).Close()
			})
		}()
		return ended
	}
	awaitBlocked := func(n int) { // until n sessions wait for a lock
		t.Helper()
		require.Eventually(t, func() bool {
			return n == db.Count(t, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
		}, time.Minute, time.Millisecond)
	}

	release := db.HoldLock(t, `select from stream_pauses where stream = 'A' for update`)
	first := relay("A", "B")
	awaitBlocked(1)
	second := relay("B", "A")
	awaitBlocked(2)
	release()
	require.NoError(t, <-first)
	require.NoError(t, <-second)
	require.Equal(t, 1, db.Count(t, `select count(*) from stream_pauses where stream = 'A' and until > now()`), "the later relay paused it again")
}
