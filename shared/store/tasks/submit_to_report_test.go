package tasks_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

func TestTaskFromSubmitToReport(t *testing.T) {
	t.Parallel()
	storetest.WithAndWithoutPooler(t, testTaskFromSubmitToReport)
}

func testTaskFromSubmitToReport(t *testing.T, db *storetest.DB) {
	require.Equal(t, task.CodeNoDefault, db.MustSubmit(t, storetest.Submission(storetest.NoContent))[0].Refused.Code)
	keyed := storetest.Submission(storetest.Keyed("k", "other queue"), func(s *tasks.Submission) { s.Queue, s.Metadata = "q", []byte(`{"a":1}`) })
	require.False(t, db.MustSubmit(t, keyed)[0].Replayed)
	keyed.ID = task.NewID()
	require.True(t, db.MustSubmit(t, keyed)[0].Replayed)

	s := storetest.Submission()
	out := db.MustSubmit(t, s)[0]
	require.Equal(t, tasks.Submitted{ID: s.ID, State: task.Pending, Text: "hello"}, out)

	claimed := db.ClaimAs(t, "app", 10)
	require.Len(t, claimed, 1)
	require.Equal(t, s.ID, claimed[0].ID)
	require.Equal(t, "13800138000", claimed[0].Phone)
	require.Equal(t, "hello", claimed[0].Content)
	require.Empty(t, db.ClaimAs(t, "other", 10), "a claimed task is not claimed again")

	r := task.Report{TaskID: s.ID, AppID: "app", ClaimID: claimed[0].ClaimID, Outcome: task.SentOK}
	require.Equal(t, task.Applied, db.MustReport(t, r).Verdict)
	require.Equal(t, task.Already, db.MustReport(t, r).Verdict)
	stored := db.MustTask(t, s.ID)
	require.Equal(t, task.Succeeded, stored.State)
	require.False(t, stored.SentAt.IsZero())
	require.Equal(t, 1, db.Count(t, `select count(*) from task_live`), "the task of the other queue")
	require.Equal(t, 1, db.Count(t, `select count(*) from receive_logs where task_id = $1 and status_code = 200`, s.ID))
	require.Equal(t, 1, db.Count(t, `select count(*) from send_logs where task_id = $1 and claim_id = $2`, s.ID, claimed[0].ClaimID))
	require.Equal(t, 2, db.Count(t, `select count(*) from report_logs where task_id = $1`, s.ID))
	require.Equal(t, 1, db.Count(t, `select count(*) from sms_tasks where task_id = $1 and status = 2 and processing_app_id = 'app'`, s.ID))
}
