package message

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	accepted     = PostResult{Status: 204}
	serverError  = PostResult{Status: 500}
	gone         = PostResult{Status: 410}
	robotRefuses = PostResult{Status: 200, Refused: true}
)

func TestDeliveryFollowsSchedule(t *testing.T) {
	t.Parallel()
	now := now
	d := Delivery{NextAt: now}
	var waited time.Duration
	attempts := 0
	for d.State == DeliveryPending {
		attempts++
		d.Claims++
		d = d.Settle(d.Claims, serverError, now, 0.5)
		if d.State == DeliveryPending {
			waited += d.NextAt.Sub(now)
			now = d.NextAt
		}
	}
	require.Equal(t, DeliveryFailed, d.State)
	require.Equal(t, 9, attempts, "the first attempt and eight retries")
	require.Greater(t, waited, 24*time.Hour)
	require.True(t, d.NextAt.IsZero())

	resent := d.Resend(now)
	require.Equal(t, Delivery{Claims: 10, NextAt: now}, resent, "a resend restarts the schedule")
}

func TestDeliveryHonoursRetryAfter(t *testing.T) {
	t.Parallel()
	d := Delivery{Claims: 1}
	require.Equal(t, time.Hour, d.Settle(1, PostResult{Status: 503, RetryAfter: time.Hour}, now, 0).NextAt.Sub(now))
	require.Equal(t, 4*time.Second, d.Settle(1, PostResult{Status: 503, RetryAfter: time.Second}, now, 0).NextAt.Sub(now), "a Retry-After shorter than the schedule has no effect")
	require.Equal(t, 24*time.Hour, d.Settle(1, PostResult{Status: 503, RetryAfter: 1000 * time.Hour}, now, 0).NextAt.Sub(now))
}

func TestRefusalIsFailureWithStatus200(t *testing.T) {
	t.Parallel()
	d := Delivery{Claims: 1, NextAt: now}.Settle(1, robotRefuses, now, 0.5)
	require.Equal(t, DeliveryPending, d.State)
	require.Equal(t, int16(1), d.Attempts)
	require.True(t, d.NextAt.After(now))
	require.Equal(t, EndpointHealth{FailingSince: now}, EndpointHealth{}.AfterAttempt(robotRefuses, now, time.Hour))
}

func TestStaleAttemptCannotFailDelivery(t *testing.T) {
	t.Parallel()
	d := Delivery{Claims: 2, NextAt: now}
	require.Equal(t, d, d.Settle(1, serverError, now, 0), "the failure of an older attempt is ignored")
	require.Equal(t, DeliveryDelivered, d.Settle(1, accepted, now, 0).State, "the success of an older attempt counts")
	done := Delivery{State: DeliveryDelivered, Claims: 2}
	require.Equal(t, done, done.Settle(2, serverError, now, 0), "delivered is final")
	failed := Delivery{State: DeliveryFailed, Claims: 2, Attempts: 9}
	require.Equal(t, DeliveryDelivered, failed.Settle(2, accepted, now, 0).State)
	require.Equal(t, failed, failed.Settle(2, serverError, now, 0))
	require.Equal(t, DeliveryFailed, d.Settle(2, gone, now, 0).State, "410 fails the delivery at once")
}

func TestFailingEndpointIsDisabled(t *testing.T) {
	t.Parallel()
	const disableAfter = 120 * time.Hour
	require.Equal(t, DisabledGone, EndpointHealth{}.AfterAttempt(gone, now, disableAfter).DisabledReason)

	h := EndpointHealth{}.AfterAttempt(serverError, now, disableAfter)
	require.Equal(t, EndpointHealth{FailingSince: now}, h)
	h = h.AfterAttempt(serverError, now.Add(disableAfter-time.Second), disableAfter)
	require.Empty(t, h.DisabledReason)
	require.Equal(t, EndpointHealth{}, h.AfterAttempt(accepted, now, disableAfter), "a success resets the failure time")
	h = h.AfterAttempt(serverError, now.Add(disableAfter), disableAfter)
	require.Equal(t, DisabledFailing, h.DisabledReason)
	h.DisabledReason = DisabledManually
	require.Equal(t, DisabledManually, h.AfterAttempt(gone, now, disableAfter).DisabledReason, "the first reason is kept")
}

func TestDeliveryStateNames(t *testing.T) {
	t.Parallel()
	for _, s := range []DeliveryState{DeliveryPending, DeliveryDelivered, DeliveryFailed} {
		got, ok := ParseDeliveryState(s.String())
		require.True(t, ok)
		require.Equal(t, s, got)
	}
	_, ok := ParseDeliveryState("lost")
	require.False(t, ok)
}
