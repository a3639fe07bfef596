package main

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

func TestBaseImages(t *testing.T) {
	t.Parallel()
	names, err := baseImages("../..")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"POSTGRES_IMAGE", "NATS_IMAGE", "CADDY_IMAGE", "PROMETHEUS_IMAGE", "GO_IMAGE"}, slices.Collect(maps.Keys(names)))
}

func TestComposeRendersBothProfiles(t *testing.T) {
	t.Parallel()
	cli, err := cliPath()
	require.NoError(t, err)
	if _, err := os.Stat(cli); err != nil {
		t.Skip("make compose-test has not built the Docker Compose CLI on this machine")
	}
	s := &stack{repository: "../..", dir: t.TempDir(), project: "test", port: "8000"}
	require.NoError(t, s.copyCompose())
	require.NoError(t, s.writeComposeCommand(t.Context()))
	require.NoError(t, s.useProfiles(t.Context(), "split"))
	require.Contains(t, s.services, "gateway")
	require.Subset(t, s.functions(), calledFunctions)
	require.NotContains(t, s.functions(), "trigger")
	require.NoError(t, s.checkSelection(""))
	require.NoError(t, s.checkSelection("claim,nats"))
	require.ErrorContains(t, s.checkSelection("claim,typo"), `"typo"`)
	require.NoError(t, s.useProfiles(t.Context(), "compact"))
	require.Equal(t, []string{"sendonce"}, s.functions())
}

func TestLedger(t *testing.T) {
	t.Parallel()
	const kills, noKills = true, false
	const data, key, task = "hello", "key", "task"
	message := load.Message{Sender: "ann", N: 1}
	// newFilled returns a ledger with one task, one message and one subscribe message, each done once, and the
	// statistics and the deliveries that match the ledger.
	newFilled := func(t *testing.T) (*ledger, api.StatisticsResponse, map[string]int) {
		l := newLedger()
		require.NoError(t, l.submitted(api.SendRequest{IdempotencyKey: key}, task))
		l.Claimed(task, "1")
		l.Reported(task)
		l.eventReceived(task)
		l.eventReceived("subscribe message")
		l.Sent(message, load.Sent{ID: "id", Ack: "saved"})
		l.Received(message)
		l.subscribed(data)
		now := api.StatisticsResponse{}
		now.SucceededTasks, now.Subscribe.SucceededTasks = 1, 1
		return l, now, map[string]int{data: 1}
	}
	t.Run("accepts what was done once", func(t *testing.T) {
		t.Parallel()
		l, now, delivered := newFilled(t)
		require.NoError(t, l.checkDone(api.StatisticsResponse{}, now, noKills))
		require.NoError(t, l.checkOnce(delivered, noKills))
		require.NoError(t, l.submitted(api.SendRequest{IdempotencyKey: key}, task))
	})
	for name, change := range map[string]func(l *ledger, now *api.StatisticsResponse, delivered map[string]int){
		"a task claimed twice":  func(l *ledger, _ *api.StatisticsResponse, _ map[string]int) { l.Claimed(task, "2") },
		"a task reported twice": func(l *ledger, _ *api.StatisticsResponse, _ map[string]int) { l.Reported(task) },
		"a task not reported": func(l *ledger, _ *api.StatisticsResponse, _ map[string]int) {
			_ = l.submitted(api.SendRequest{IdempotencyKey: "new"}, "new")
		},
		"a task without a webhook":              func(l *ledger, _ *api.StatisticsResponse, _ map[string]int) { delete(l.events, task) },
		"a subscribe message without a webhook": func(l *ledger, _ *api.StatisticsResponse, _ map[string]int) { delete(l.events, "subscribe message") },
		"a message received twice":              func(l *ledger, _ *api.StatisticsResponse, _ map[string]int) { l.Received(message) },
		"a message lost": func(l *ledger, _ *api.StatisticsResponse, _ map[string]int) {
			l.Sent(load.Message{Sender: "ann", N: 2}, load.Sent{ID: "id", Ack: "saved"})
		},
		"a subscribe message sent twice":    func(_ *ledger, _ *api.StatisticsResponse, delivered map[string]int) { delivered[data]++ },
		"a subscribe message not delivered": func(_ *ledger, _ *api.StatisticsResponse, delivered map[string]int) { delete(delivered, data) },
		"a task that was not submitted":     func(_ *ledger, now *api.StatisticsResponse, _ map[string]int) { now.SucceededTasks++ },
		"a task that has failed":            func(_ *ledger, now *api.StatisticsResponse, _ map[string]int) { now.FailedTasks++ },
		"a task that waits":                 func(_ *ledger, now *api.StatisticsResponse, _ map[string]int) { now.PendingNewTasks++ },
		"a held subscribe message": func(_ *ledger, now *api.StatisticsResponse, _ map[string]int) {
			now.Subscribe.SucceededTasks, now.Subscribe.ProcessingTasks, now.Subscribe.HeldTasks = 0, 1, 1
		},
	} {
		t.Run("rejects "+name, func(t *testing.T) {
			t.Parallel()
			l, now, delivered := newFilled(t)
			change(l, &now, delivered)
			doneErr, onceErr := l.checkDone(api.StatisticsResponse{}, now, noKills), l.checkOnce(delivered, noKills)
			require.False(t, doneErr == nil && onceErr == nil)
		})
	}
	t.Run("accepts a held subscribe message of an earlier kill", func(t *testing.T) {
		t.Parallel()
		l, now, _ := newFilled(t)
		before := api.StatisticsResponse{}
		before.Subscribe.ProcessingTasks = 1
		now.Subscribe.ProcessingTasks, now.Subscribe.HeldTasks = 1, 1
		require.NoError(t, l.checkDone(before, now, noKills))
		now.Subscribe.ProcessingTasks, now.Subscribe.HeldTasks = 2, 2
		require.Error(t, l.checkDone(before, now, noKills))
	})
	t.Run("accepts a held subscribe message after kills", func(t *testing.T) {
		t.Parallel()
		l, now, delivered := newFilled(t)
		now.Subscribe.SucceededTasks, now.Subscribe.ProcessingTasks, now.Subscribe.HeldTasks = 0, 1, 1
		delete(delivered, data)
		require.NoError(t, l.checkDone(api.StatisticsResponse{}, now, kills))
		require.NoError(t, l.checkOnce(delivered, kills))
		delivered[data] = 2
		require.Error(t, l.checkOnce(delivered, kills), "two deliveries are an error even after kills")
	})
}
