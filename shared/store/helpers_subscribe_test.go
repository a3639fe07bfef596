package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) subscribe(t *testing.T, s *Subscription) Subscribed {
	t.Helper()
	out, err := db.Subscribe(t.Context(), s)
	require.NoError(t, err)
	return out
}

// try claims the only pending subscribe message and reports on it.
func (db *DB) try(t *testing.T, r task.Report) task.Task {
	t.Helper()
	claimed, _, err := db.Claim(t.Context(), ClaimRequest{Queue: task.WeChatQueue, AppID: "wechat", Limit: 1, Lease: time.Minute, Request: []byte(`{}`), MarksSending: true})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	r.TaskID, r.AppID, r.ClaimID = claimed[0].ID, "wechat", claimed[0].ClaimID
	outs, errs := db.Report([]*Report{{Request: []byte(`{}`), Report: r}})
	require.NoError(t, errs[0])
	require.Equal(t, task.Applied, outs[0].Verdict)
	return outs[0].Task
}

// booking is the order for the confirmation of a booking.
func booking(id uint64, data string) *Subscription {
	return &Subscription{
		TaskID: task.NewID(), TemplateID: "tmpl", TemplateType: "BOOKING_CONFIRM", BusinessType: "course_booking", BusinessID: id, ReceiverUserID: 9,
		ReceiverOpenID: "openid", Data: []byte(data), Page: "pages/booking", CallerID: 7, Queue: task.WeChatQueue, MaxRetries: 3, Metadata: []byte(`{}`),
	}
}

func (db *DB) mustToken(t *testing.T) ProviderToken {
	t.Helper()
	token, err := db.ProviderToken(t.Context(), "wechat", "app")
	require.NoError(t, err)
	return token
}

// settledBooking orders a message 100 days ago and reports on it 99 days ago.
func (db *DB) settledBooking(t *testing.T, id uint64, outcome task.Outcome) (ordered Subscribed) {
	t.Helper()
	ordered = db.subscribe(t, oldBooking(id, `{"thing1":{"value":"Tea"}}`))
	db.try(t, task.Report{Outcome: outcome})
	db.exec(t, `update task_done set reported_at = now() - interval '99 days' where id = $1`, ordered.TaskID)
	db.exec(t, `update subscribe_message_logs set updated_at = now() - interval '99 days', send_time = now() - interval '99 days' where id = $1`, ordered.ID)
	return ordered
}

// oldBooking is an order that was made 100 days ago.
func oldBooking(id uint64, data string) *Subscription {
	s := booking(id, data)
	floor := task.IDFloor(time.Now().AddDate(0, 0, -100))
	copy(s.TaskID[:8], floor[:8])
	return s
}

func (db *DB) mustRates(t *testing.T, since time.Time, of *int64) []TemplateRate {
	t.Helper()
	rates, err := db.TemplateRates(t.Context(), since, of)
	require.NoError(t, err)
	return rates
}
