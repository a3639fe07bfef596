package tasks_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// A manual retry and two late reports run concurrently. They may move a task three times between task_done and task_live.
func TestConcurrentlyChangedTaskIsFound(t *testing.T) {
	t.Parallel()
	one, other := storetest.OpenTwo(t)
	for range 30 {
		one.MustSubmit(t, storetest.Submission(func(s *tasks.Submission) { s.MaxRetries = 0 }))
	}
	claimed := one.ClaimAs(t, "app", 30)
	for _, c := range claimed {
		one.MustReport(t, task.Report{TaskID: c.ID, AppID: "app", Outcome: task.SentFailed})
	}
	var logged atomic.Int64
	for _, c := range claimed {
		var changes sync.WaitGroup
		for _, db := range []*storetest.DB{one, other} {
			changes.Go(func() {
				out, err := db.Report(task.Report{TaskID: c.ID, AppID: "app", ClaimID: c.ClaimID})
				switch {
				case task.CodeOf(err) == task.CodeServerBusy: // the sender repeats the report
				case err != nil || !out.Found:
					t.Errorf("a report: found %v, %v", out.Found, err)
				default:
					logged.Add(1)
				}
			})
		}
		changes.Go(func() {
			_, err := one.Tasks.RetryFailed(t.Context(), c.ID, store.Operator{Name: "ann"})
			if code := task.CodeOf(err); err != nil && code != task.CodeConflict && code != task.CodeServerBusy {
				t.Error(err)
			}
		})
		changes.Wait()
	}
	require.EqualValues(t, logged.Load(), one.Count(t, `select count(*) from report_logs where status = 2`))
}

// An attacker who controls a function can delete the state of a task. It is then unknown whether the message of
// the task was sent, so a subscribe message is not sent again.
func TestTaskWithoutStateIsNotFound(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	damaged, neighbour := storetest.Submission(), storetest.Submission()
	db.MustSubmit(t, damaged, neighbour)
	db.ClaimAs(t, "app", 2)
	db.Exec(t, `delete from task_live where id = $1`, damaged.ID)

	unknown := task.NewID()
	var reports []*tasks.Report
	for _, id := range []task.ID{damaged.ID, neighbour.ID, unknown} {
		reports = append(reports, storetest.Report(task.Report{TaskID: id, AppID: "app"}))
	}
	outs, errs := db.Tasks.Report(reports)
	require.NoError(t, errs[0])
	require.False(t, outs[0].Found, "the result is final: a sender does not repeat the report")
	require.NoError(t, errs[1])
	require.Equal(t, task.Applied, outs[1].Verdict, "a neighbour in the same batch")
	require.NoError(t, errs[2])
	require.False(t, outs[2].Found)
	_, err := db.Tasks.Cancel(t.Context(), damaged.ID, nil)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	_, err = db.Tasks.Cancel(t.Context(), unknown, nil)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))

	subscribed := db.MustSubscribe(t, storetest.Booking(1, `{"a":1}`))
	db.Exec(t, `delete from task_live where id = $1`, subscribed.TaskID)
	_, err = db.Subscribe.Submit(t.Context(), storetest.Booking(1, `{"a":1}`))
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err), "it may have been sent")
	_, err = db.Subscribe.Resend(t.Context(), subscribed.ID, &subscribe.Submission{TaskID: task.NewID(), MaxRetries: 3, Metadata: []byte(`{}`)}, true, store.Operator{Name: "ann"})
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err))
	require.Equal(t, 1, db.Count(t, `select count(*) from subscribe_message_sends`), "no second send was stored")
}
