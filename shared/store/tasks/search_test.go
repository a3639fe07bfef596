package tasks_test

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/load"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// A search that is limited to queues does the same work whether other queues have matching tasks or not. So neither its duration nor
// its result reveals these tasks.
func TestSearchIgnoresTasksOfOtherQueues(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	own := submitMany(t, db, 2)
	others := submitMany(t, db, 21, storetest.InQueue("secret"))
	db.Exec(t, `insert into submission_keys (key, fingerprint, id) values ($1, $1, $2)`, task.KeyHash(0, "sms", "x"), others[0])
	for _, id := range append([]task.ID{own[0]}, others...) {
		db.Exec(t, `insert into receive_logs (request_id, task_id, caller_id, status_code) values ('x', $1, 0, 200)`, id)
	}
	limited := tasks.Search{Key: "x", Request: "x", Queues: []string{task.DefaultQueue}}
	found, complete, err := db.Tasks.Find(t.Context(), limited)
	require.NoError(t, err)
	require.True(t, complete)
	require.Equal(t, own[:1], found)

	claimed := db.ClaimAs(t, "app", 1)[0]
	for queue, want := range map[string][]task.ID{task.DefaultQueue: {claimed.ID}, "secret": {}} {
		found, _, err = db.Tasks.Find(t.Context(), tasks.Search{ClaimID: claimed.ClaimID, Queues: []string{queue}})
		require.NoError(t, err)
		require.ElementsMatch(t, want, found)
	}
	found, _, err = db.Tasks.Find(t.Context(), tasks.Search{Key: "x", Request: "x"})
	require.NoError(t, err)
	require.Equal(t, others[:1], found)
}

func TestSearchByKeyAmongTooManyCallersIsIncomplete(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	id := submitMany(t, db, 1)[0]
	insertCallers := func(n int) {
		db.Exec(t, `insert into callers (name, token_hash, roles, queues) select 'c' || gen_random_uuid(), sha256(gen_random_uuid()::text::bytea), '{submitter}', '{}' from generate_series(1, $1)`, n)
	}
	insertCallers(1)
	db.Exec(t, `insert into submission_keys (key, fingerprint, id) values ($1, $1, $2)`, task.KeyHash(1, "sms", "x"), id)
	find := func(s tasks.Search) (found []task.ID, complete bool) {
		found, complete, err := db.Tasks.Find(t.Context(), s)
		require.NoError(t, err)
		return found, complete
	}
	insertCallers(1999)
	found, complete := find(tasks.Search{Key: "x"})
	require.Equal(t, []task.ID{id}, found)
	require.True(t, complete)
	_, complete = find(tasks.Search{Key: "y"})
	require.True(t, complete)

	insertCallers(2)
	found, complete = find(tasks.Search{Key: "x"})
	require.Empty(t, found, "the keys of the oldest callers are not searched")
	require.False(t, complete)
	found, complete = find(tasks.Search{Key: "x", Caller: new(int64(1))})
	require.Equal(t, []task.ID{id}, found)
	require.True(t, complete)
}

func TestSearchesScanNoLargeTable(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := storetest.OpenAt(t, url)
	require.NoError(t, load.FillTasks(t.Context(), storetest.ConnectAsOwner(t, url), 20_000, io.Discard))
	keys := make([]task.Hash, 20)
	for caller := range keys {
		keys[caller] = task.KeyHash(int64(caller), "sms", "a key")
	}
	now := time.Now()
	for _, queues := range [][]string{{}, {"default"}} {
		for _, plan := range []string{
			storetest.Explain(t, db.Read, "select", tasks.SearchKeySQL, keys, 20, queues),
			storetest.Explain(t, db.Read, "select", tasks.SearchDoneClaimSQL, int64(1), 20, queues, now.Add(-15*time.Minute), now),
		} {
			require.NotRegexp(t, "Seq Scan on (submission_keys|task_done|tasks)", plan, queues)
		}
	}
}
