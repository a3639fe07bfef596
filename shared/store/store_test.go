package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

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
