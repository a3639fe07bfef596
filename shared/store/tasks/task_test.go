package tasks_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
)

// A reveal is recorded once for each task, caller and hour, so that repeated reveals do not fill the disk.
func TestRevealIsRecordedOnceAnHour(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ids := submitMany(t, db, 2)
	ann, bob := store.Operator{CallerID: 1, Name: "ann", RequestID: "r1"}, store.Operator{CallerID: 2, Name: "bob", RequestID: "r2"}
	const revealsSQL = `select count(*) from operator_actions where action = 'task.reveal'`
	for range 5 {
		for _, by := range []store.Operator{ann, bob} {
			require.NoError(t, db.Tasks.RecordReveal(t.Context(), ids[0], by))
			require.NoError(t, db.Tasks.RecordReveal(t.Context(), ids[1], by))
		}
	}
	require.Equal(t, 4, db.Count(t, revealsSQL))
	db.Exec(t, `update operator_actions set created_at = created_at - interval '1 hour'`)
	require.NoError(t, db.Tasks.RecordReveal(t.Context(), ids[0], ann))
	require.Equal(t, 5, db.Count(t, revealsSQL))
}
