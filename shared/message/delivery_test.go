package message

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	took   = Answer{Status: 204}
	broken = Answer{Status: 500}
	gone   = Answer{Status: 410}
)

func TestDeliveryFollowsSchedule(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := Delivery{NextAt: now}
	var waited time.Duration
	tries := 0
	for d.State == DeliveryPending {
		tries++
		d.Claims++
		d = d.Settle(d.Claims, broken, now, 0.5)
		if d.State == DeliveryPending {
			waited += d.NextAt.Sub(now)
			now = d.NextAt
		}
	}
	require.Equal(t, DeliveryFailed, d.State)
	require.Equal(t, 9, tries, "once, and eight times again")
	require.Greater(t, waited, 24*time.Hour)
	require.True(t, d.NextAt.IsZero())

	again := d.Resend(now)
	require.Equal(t, Delivery{Claims: 10, NextAt: now}, again, "a resend begins the schedule anew")
}

func TestDeliveryHonoursRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := Delivery{Claims: 1}
	require.Equal(t, time.Hour, d.Settle(1, Answer{Status: 503, RetryAfter: time.Hour}, now, 0).NextAt.Sub(now))
	require.Equal(t, 4*time.Second, d.Settle(1, Answer{Status: 503, RetryAfter: time.Second}, now, 0).NextAt.Sub(now), "not less than the schedule")
	require.Equal(t, 24*time.Hour, d.Settle(1, Answer{Status: 503, RetryAfter: 1000 * time.Hour}, now, 0).NextAt.Sub(now))
}

func TestStaleTryCannotFailDelivery(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := Delivery{Claims: 2, NextAt: now}
	require.Equal(t, d, d.Settle(1, broken, now, 0), "an older failure says nothing")
	require.Equal(t, DeliveryDelivered, d.Settle(1, took, now, 0).State, "an older success does")
	done := Delivery{State: DeliveryDelivered, Claims: 2}
	require.Equal(t, done, done.Settle(2, broken, now, 0), "what was delivered stays so")
	failed := Delivery{State: DeliveryFailed, Claims: 2, Attempts: 9}
	require.Equal(t, DeliveryDelivered, failed.Settle(2, took, now, 0).State)
	require.Equal(t, failed, failed.Settle(2, broken, now, 0))
	require.Equal(t, DeliveryFailed, d.Settle(2, gone, now, 0).State, "410 ends it at once")
}

func TestFailingEndpointIsDisabled(t *testing.T) {
	t.Parallel()
	now := time.Now()
	const patience = 120 * time.Hour
	require.Equal(t, DisabledGone, Health{}.After(gone, now, patience).Disabled)

	h := Health{}.After(broken, now, patience)
	require.Equal(t, Health{FailingSince: now}, h)
	h = h.After(broken, now.Add(patience-time.Second), patience)
	require.Empty(t, h.Disabled)
	require.Equal(t, Health{}, h.After(took, now, patience), "a success begins anew")
	h = h.After(broken, now.Add(patience), patience)
	require.Equal(t, DisabledFailing, h.Disabled)
	h.Disabled = DisabledByHand
	require.Equal(t, DisabledByHand, h.After(gone, now, patience).Disabled, "it says the first reason")
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
