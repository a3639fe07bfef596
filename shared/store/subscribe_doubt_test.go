package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func TestDoubtIsOfOneTemplateAndOneUserAndEndsWithASuccess(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Subscription){
		"another template": func(s *Subscription) { s.TemplateID = "other" },
		"another openid":   func(s *Subscription) { s.ReceiverOpenID = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			s := booking(1, `{"a":1}`)
			s.OnUnknown = task.Fail
			db.subscribe(t, s)
			db.try(t, task.Report{Outcome: task.SentUnknown})
			s = booking(1, `{"a":1}`)
			change(s)
			again := db.subscribe(t, s)
			require.False(t, db.doubtful(t, again.TaskID), "what may have been delivered was another grant's")
		})
	}
	t.Run("a message that is sent once more", func(t *testing.T) {
		t.Parallel()
		db := open(t)
		s := booking(1, `{"a":1}`)
		s.OnUnknown = task.Fail
		first := db.subscribe(t, s)
		db.try(t, task.Report{Outcome: task.SentUnknown})
		second := db.subscribe(t, booking(1, `{"a":1}`))
		require.True(t, db.doubtful(t, second.TaskID))
		db.try(t, task.Report{Outcome: task.SentOK})
		out, err := db.ResendSubscription(t.Context(), first.ID, &Subscription{TaskID: task.NewID(), MaxRetries: 3, Metadata: []byte(`{}`)}, true, Operator{Name: "ann", Reason: "lost phone"})
		require.NoError(t, err)
		require.False(t, db.doubtful(t, out.TaskID))
	})
}

// doubtful tells what who sends it is told.
func (db *DB) doubtful(t *testing.T, id task.ID) bool {
	t.Helper()
	sends, err := db.BeginSends(t.Context(), []task.ID{id})
	require.NoError(t, err)
	require.Contains(t, sends, id)
	return sends[id].Doubtful
}

func TestARetryByHandOfWhatWasNeverBegunRaisesNoDoubt(t *testing.T) {
	t.Parallel()
	db := open(t)
	s := booking(1, `{}`)
	s.MaxRetries = 0
	out := db.subscribe(t, s)
	_, _, err := db.Claim(t.Context(), ClaimRequest{Queue: task.WeChatQueue, AppID: "wechat", Limit: 1, Lease: time.Minute, Request: []byte(`{}`), MarksSending: true})
	require.NoError(t, err)
	db.exec(t, `update task_live set due_at = now()`)
	_, err = db.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, task.SubscribeFailed, db.mustLog(t, out.ID).Status)
	require.False(t, db.doubtful(t, out.TaskID))
	_, err = db.RetryFailed(t.Context(), out.TaskID, Operator{Name: "ann"})
	require.NoError(t, err)
	require.False(t, db.doubtful(t, out.TaskID), "no try of it ever left")
}
