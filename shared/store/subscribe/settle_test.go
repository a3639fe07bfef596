package subscribe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMayHaveBeenSentIsPerTemplateAndUserUntilSuccess(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*subscribe.Submission){
		"another template": func(s *subscribe.Submission) { s.TemplateID = "other" },
		"another openid":   func(s *subscribe.Submission) { s.ReceiverOpenID = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			s := storetest.Booking(1, `{"a":1}`)
			s.OnUnknown = task.Fail
			db.MustSubscribe(t, s)
			db.ClaimAndReport(t, task.Report{Outcome: task.SentUnknown})
			s = storetest.Booking(1, `{"a":1}`)
			change(s)
			again := db.MustSubscribe(t, s)
			require.False(t, beginSend(t, db, again.TaskID).MayHaveBeenSent, "the earlier send used another consent")
		})
	}
	t.Run("a sent message that is resent", func(t *testing.T) {
		t.Parallel()
		db := storetest.Open(t)
		s := storetest.Booking(1, `{"a":1}`)
		s.OnUnknown = task.Fail
		first := db.MustSubscribe(t, s)
		db.ClaimAndReport(t, task.Report{Outcome: task.SentUnknown})
		second := db.MustSubscribe(t, storetest.Booking(1, `{"a":1}`))
		require.True(t, beginSend(t, db, second.TaskID).MayHaveBeenSent)
		db.ClaimAndReport(t, task.Report{Outcome: task.SentOK})
		out, err := db.Subscribe.Resend(t.Context(), first.ID, resending(), true, storetest.Tester)
		require.NoError(t, err)
		require.False(t, beginSend(t, db, out.TaskID).MayHaveBeenSent)
	})
}

func TestUnstartedSendDoesNotSetMayHaveBeenSent(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Booking(1, `{}`)
	s.MaxRetries = 0
	out := db.MustSubscribe(t, s)
	db.Claim(t, func(r *tasks.ClaimRequest) { r.Queue, r.MarksSending = task.WeChatQueue, true })
	db.ExpireLeases(t)
	_, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, task.SubscribeSending, db.MustLog(t, out.ID).Status, "the message has not failed")
	require.False(t, beginSend(t, db, out.TaskID).MayHaveBeenSent, "no attempt was started")
}
