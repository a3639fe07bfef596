package task

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// alertRules returns rules for every queue: alerts above a failure rate of 20% of at least 20 results, and above 100 pending tasks.
func alertRules() AlertRules {
	return AlertRules{FailureRate: Limits{"*": 0.2}, MinFinished: 20, Window: 5 * time.Minute, Backlog: Limits{"*": 100}}
}

func TestAlertIsRaisedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		load QueueLoad
		want []Alert
	}{
		"no tasks":                      {QueueLoad{}, nil},
		"at the thresholds":             {QueueLoad{Pending: 100, Finished: 20, Failed: 4}, nil},
		"too few results":               {QueueLoad{Finished: 19, Failed: 19}, nil},
		"a rate above its threshold":    {QueueLoad{Finished: 20, Failed: 5}, []Alert{{AlertFailureRate, "q", 0.25, 0.2}}},
		"a backlog above its threshold": {QueueLoad{Pending: 101, Finished: 20}, []Alert{{AlertBacklog, "q", 101, 100}}},
		"both above":                    {QueueLoad{Pending: 500, Finished: 50, Failed: 50}, []Alert{{AlertFailureRate, "q", 1, 0.2}, {AlertBacklog, "q", 500, 100}}},
	} {
		queues := map[string]QueueLoad{"q": c.load}
		raised, cleared := alertRules().CheckQueues(queues, nil)
		require.Equal(t, c.want, raised, name)
		require.Empty(t, cleared, name)
		again, cleared := alertRules().CheckQueues(queues, raised)
		require.Empty(t, again, name)
		require.Empty(t, cleared, name)
	}
}

func TestAlertClearsBelowThreshold(t *testing.T) {
	t.Parallel()
	rate, backlog := Alert{AlertFailureRate, "q", 0.5, 0.2}, Alert{AlertBacklog, "q", 500, 100}
	for name, c := range map[string]struct {
		open   Alert
		load   QueueLoad
		clears bool
		value  float64
	}{
		"a rate just below its threshold does not clear":    {rate, QueueLoad{Finished: 100, Failed: 17}, false, 0},
		"a rate of 80% of its threshold clears":             {rate, QueueLoad{Finished: 100, Failed: 16}, true, 0.16},
		"an empty window clears":                            {rate, QueueLoad{}, true, 0},
		"few results, all failed, do not clear":             {rate, QueueLoad{Finished: 2, Failed: 2}, false, 0},
		"few results, none failed, clear":                   {rate, QueueLoad{Finished: 2}, true, 0},
		"a backlog just below its threshold does not clear": {backlog, QueueLoad{Pending: 81}, false, 0},
		"a backlog of 80% of its threshold clears":          {backlog, QueueLoad{Pending: 80}, true, 80},
		"pending tasks do not keep a rate alert open":       {rate, QueueLoad{Pending: 80}, true, 0},
		"finished tasks do not clear a backlog alert":       {backlog, QueueLoad{Pending: 99, Finished: 9}, false, 0},
	} {
		_, cleared := alertRules().CheckQueues(map[string]QueueLoad{"q": c.load}, []Alert{c.open})
		if !c.clears {
			require.Empty(t, cleared, name)
			continue
		}
		want := c.open
		want.Value = c.value
		require.Equal(t, []Alert{want}, cleared, name)
	}
}

func TestZeroThresholdDisablesAlert(t *testing.T) {
	t.Parallel()
	busy := map[string]QueueLoad{"q": {Pending: 1000, Finished: 100, Failed: 100}}
	rules := AlertRules{FailureRate: Limits{"*": 0}, MinFinished: 20, Backlog: Limits{"*": 100, "q": 0}}
	open := []Alert{{AlertFailureRate, "q", 1, 0.2}, {AlertBacklog, "q", 1000, 100}}
	raised, cleared := rules.CheckQueues(busy, nil)
	require.Empty(t, raised)
	require.Empty(t, cleared)
	_, cleared = rules.CheckQueues(busy, open)
	require.Equal(t, open, cleared)
	require.True(t, rules.On(), "other queues have a backlog threshold")
	require.False(t, AlertRules{FailureRate: Limits{"*": 0}}.On())
}

func TestParseAlertLimits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Limits{
		"": {}, "0": {"*": 0}, "0.2": {"*": 0.2}, "wechat=0.1": {"wechat": 0.1}, "0.2;wechat=0": {"*": 0.2, "wechat": 0},
	} {
		var l Limits
		require.NoError(t, l.Decode(text), text)
		require.Equal(t, want, l)
	}
	for text, message := range map[string]string{
		"x": `"x" is not a number`, "-1": `"-1" is not a number`, "NaN": "is not a number", "Inf": "is not a number",
		"a b=1": "has no valid queue name", "=1": "has no valid queue name", "q=1;q=2": `"q" is set twice`, "1;*=2": `"*" is set twice`,
	} {
		l := Limits{"kept": 1}
		require.ErrorContains(t, l.Decode(text), message, text)
		require.Equal(t, Limits{"kept": 1}, l)
	}
}

func TestAlertCheckInterval(t *testing.T) {
	t.Parallel()
	for window, interval := range map[time.Duration]time.Duration{
		0: time.Second, 5 * time.Second: time.Second, 2 * time.Minute: 12 * time.Second, 5 * time.Minute: 30 * time.Second, time.Hour: 30 * time.Second,
	} {
		require.Equal(t, interval, AlertRules{Window: window}.CheckInterval(), window)
	}
}

func TestFailureCounts(t *testing.T) {
	t.Parallel()
	require.True(t, Task{State: Failed, Reason: Rejected}.FailureCounts())
	require.True(t, Task{State: Failed, Reason: TimedOut, Attempt: Attempt{ErrorCode: "-1"}}.FailureCounts())
	for _, other := range []Task{
		{State: Succeeded}, {State: Failed, Reason: Cancelled}, {State: Failed, Reason: Expired},
		{State: Failed, Reason: Rejected, Attempt: Attempt{ErrorCode: NoConsent}}, {State: Pending, Attempt: Attempt{ErrorCode: "-1"}},
	} {
		require.False(t, other.FailureCounts(), other)
	}
}

func TestCheckStreams(t *testing.T) {
	t.Parallel()
	full := Alert{AlertStreamFull, "USERS", 0.9, 0.8}
	for name, c := range map[string]struct {
		limit           float64
		used            map[string]float64
		open            []Alert
		raised, cleared []Alert
	}{
		"at the threshold":                 {0.8, map[string]float64{"USERS": 0.8}, nil, nil, nil},
		"above the threshold":              {0.8, map[string]float64{"USERS": 0.9, "EVENTS": 0.1}, nil, []Alert{full}, nil},
		"above it with an open alert":      {0.8, map[string]float64{"USERS": 0.95}, []Alert{full}, nil, nil},
		"just below it with an open alert": {0.8, map[string]float64{"USERS": 0.71}, []Alert{full}, nil, nil},
		"0.11 below it clears":             {0.8, map[string]float64{"USERS": 0.69}, []Alert{full}, nil, []Alert{{AlertStreamFull, "USERS", 0.69, 0.8}}},
		"a threshold below 0.1 clears":     {0.05, map[string]float64{"USERS": 0.04}, []Alert{full}, nil, []Alert{{AlertStreamFull, "USERS", 0.04, 0.8}}},
		"this stream is unknown":           {0.8, map[string]float64{"EVENTS": 0.1}, []Alert{full}, nil, nil},
		"all streams are unknown":          {0.8, nil, []Alert{full}, nil, nil},
		"threshold 0 clears":               {0, nil, []Alert{full}, nil, []Alert{{AlertStreamFull, "USERS", 0, 0.8}}},
		"another stream above it":          {0.8, map[string]float64{"USERS": 0.9, "EVENTS": 1}, []Alert{full}, []Alert{{AlertStreamFull, "EVENTS", 1, 0.8}}, nil},
	} {
		raised, cleared := AlertRules{StreamFull: c.limit}.CheckStreams(c.used, c.open)
		require.Equal(t, c.raised, raised, name)
		require.Equal(t, c.cleared, cleared, name)
	}
}
