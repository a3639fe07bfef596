package sender_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sender"
)

func TestFlakyGatewayFollowsItsScript(t *testing.T) {
	t.Parallel()
	f, err := sender.NewFlaky(sender.FlakyConfig{Script: []string{"ok", "failed", "retryable", "released", "unknown", "hang", "panic"}})
	require.NoError(t, err)
	for n, want := range []sender.Outcome{sender.OK, sender.Failed, sender.Retryable, sender.Released, sender.Unknown, sender.Unknown} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		require.Equal(t, want, f.Send(ctx, sender.Message{TaskID: "t", ClaimID: int64(n)}).Outcome, n)
		cancel()
	}
	require.Panics(t, func() { f.Send(t.Context(), sender.Message{TaskID: "t", ClaimID: 6}) })
	require.Equal(t, sender.OK, f.Send(t.Context(), sender.Message{TaskID: "t", ClaimID: 7}).Outcome, "after the script")
	require.Equal(t, map[sender.SentAttempt]int{
		{TaskID: "t", ClaimID: 0}: 1, {TaskID: "t", ClaimID: 4}: 1, {TaskID: "t", ClaimID: 5}: 1, {TaskID: "t", ClaimID: 6}: 1, {TaskID: "t", ClaimID: 7}: 1,
	}, f.Ledger(), "with unknown, hang and panic, the message counts as sent")
}

func TestFlakyGatewayFollowsItsShares(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) (outcomes []sender.Outcome) {
		f, err := sender.NewFlaky(sender.FlakyConfig{Shares: map[string]float64{"failed": 0.2, "retryable": 0.3}, Seed: seed})
		require.NoError(t, err)
		for range 2000 {
			outcomes = append(outcomes, f.Send(t.Context(), sender.Message{}).Outcome)
		}
		return outcomes
	}
	count := map[sender.Outcome]int{}
	for _, o := range run(1) {
		count[o]++
	}
	require.Len(t, count, 3)
	require.InDelta(t, 1000, count[sender.OK], 120)
	require.InDelta(t, 400, count[sender.Failed], 100)
	require.InDelta(t, 600, count[sender.Retryable], 100)
	require.Equal(t, run(1), run(1), "the same seed, the same choices")
	require.NotEqual(t, run(1), run(2))
}

func TestNewFlakyNamesAllErrors(t *testing.T) {
	t.Parallel()
	_, err := sender.NewFlaky(sender.FlakyConfig{Script: []string{"okay"}, Shares: map[string]float64{"fail": 0.1, "ok": 0.9, "hang": 2}})
	for _, text := range []string{`"okay"`, `"fail"`, "share of hang", "sum of the shares"} {
		require.ErrorContains(t, err, text)
	}
}
