package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) MustSubscribe(t *testing.T, s *subscribe.Submission) subscribe.Submitted {
	t.Helper()
	out, err := db.Subscribe.Submit(t.Context(), s)
	require.NoError(t, err)
	return out
}

// ClaimAndReport claims one task of the WeChat queue and reports r for it. The report must be applied.
func (db *DB) ClaimAndReport(t *testing.T, r task.Report) task.Task {
	t.Helper()
	claimed := db.Claim(t, func(r *tasks.ClaimRequest) {
		r.Queue, r.AppID, r.Limit, r.MarksSending = task.WeChatQueue, "wechat", 1, true
	})
	require.Len(t, claimed, 1)
	r.TaskID, r.AppID, r.ClaimID = claimed[0].ID, "wechat", claimed[0].ClaimID
	out := db.MustReport(t, r)
	require.Equal(t, task.Applied, out.Verdict)
	return out.Task
}

// Booking returns a submission of a subscribe message that confirms a booking.
func Booking(id uint64, data string) *subscribe.Submission {
	return &subscribe.Submission{
		TaskID: task.NewID(), TemplateID: "tmpl", TemplateType: "BOOKING_CONFIRM", BusinessType: "course_booking", BusinessID: id, ReceiverUserID: 9,
		ReceiverOpenID: "openid", Data: []byte(data), Page: "pages/booking", CallerID: 7, Queue: task.WeChatQueue, MaxRetries: 3, Metadata: []byte(`{}`),
	}
}

func (db *DB) MustLog(t *testing.T, id int64) subscribe.Log {
	t.Helper()
	l, err := db.Subscribe.LogByID(t.Context(), id)
	require.NoError(t, err)
	return l
}

func (db *DB) MustToken(t *testing.T) subscribe.ProviderToken {
	t.Helper()
	token, err := db.Subscribe.ProviderToken(t.Context(), "wechat", "app")
	require.NoError(t, err)
	return token
}

// MustSettleOldBooking submits a message as if 100 days ago, and reports its outcome as if 99 days ago.
func (db *DB) MustSettleOldBooking(t *testing.T, id uint64, outcome task.Outcome) (submitted subscribe.Submitted) {
	t.Helper()
	submitted = db.MustSubscribe(t, OldBooking(id, `{"thing1":{"value":"Tea"}}`))
	db.ClaimAndReport(t, task.Report{Outcome: outcome})
	db.Exec(t, `update task_done set reported_at = now() - interval '99 days' where id = $1`, submitted.TaskID)
	db.Exec(t, `update subscribe_message_logs set updated_at = now() - interval '99 days', send_time = now() - interval '99 days' where id = $1`, submitted.ID)
	return submitted
}

// OldBooking returns a Booking whose task has an id of 100 days ago.
func OldBooking(id uint64, data string) *subscribe.Submission {
	s := Booking(id, data)
	floor := task.IDFloor(time.Now().AddDate(0, 0, -100))
	copy(s.TaskID[:8], floor[:8])
	return s
}

func (db *DB) MustRates(t *testing.T, since time.Time, callerID *int64) []subscribe.TemplateRate {
	t.Helper()
	rates, err := db.Subscribe.TemplateRates(t.Context(), since, callerID)
	require.NoError(t, err)
	return rates
}
