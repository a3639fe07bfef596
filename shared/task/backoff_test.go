package task

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slowBackoff is a backoff for queue q alone.
var slowBackoff = Backoff{"q": {5 * time.Second, 30 * time.Second}}

func TestBackoffSchedule(t *testing.T) {
	t.Parallel()
	for retries, wait := range map[int16]time.Duration{0: 5 * time.Second, 1: 30 * time.Second, 2: 30 * time.Second} {
		before := claimed(func(t *Task) { t.Queue, t.RetryCount = "q", retries })
		for name, report := range map[string]Report{
			"failed":  {Outcome: SentFailed, ShouldRetry: true},
			"unknown": {Outcome: SentUnknown},
		} {
			report.AppID = "a"
			got, verdict := before.Report(report, slowBackoff, now)
			require.Equal(t, Applied, verdict)
			require.Equal(t, Scheduled, got.State, name)
			require.Equal(t, now.Add(wait), got.DueAt, name)
			require.Equal(t, retries+1, got.RetryCount, name)
			got, verdict = got.Report(report, slowBackoff, now)
			require.Equal(t, Already, verdict, name)
			late, verdict := got.Report(Report{AppID: "a", Outcome: SentOK}, slowBackoff, now)
			require.Equal(t, Applied, verdict, "%s: a late success is applied", name)
			require.Equal(t, Succeeded, late.State, name)
		}
		got, verdict := before.SettleDue(slowBackoff, now)
		require.Equal(t, TimeoutRetry, verdict)
		require.Equal(t, Scheduled, got.State)
		require.Equal(t, now.Add(wait), got.DueAt)
		require.Equal(t, ResultTimeoutRetry, got.Result)
		got, verdict = got.SettleDue(slowBackoff, got.DueAt)
		require.Equal(t, Promoted, verdict)
		require.Equal(t, Pending, got.State)
		require.Zero(t, got.DueAt)
	}
}

func TestRetryWithoutBackoffIsImmediate(t *testing.T) {
	t.Parallel()
	failed := Report{AppID: "a", Outcome: SentFailed, ShouldRetry: true}
	for name, b := range map[string]Backoff{"none at all": nil, "another queue's": slowBackoff, "its own, zero": {"*": {time.Hour}, DefaultQueue: {0}}} {
		got, _ := claimed().Report(failed, b, now)
		require.Equal(t, Pending, got.State, name)
		require.Zero(t, got.DueAt, name)
	}
	got, _ := claimed().Report(failed, Backoff{"*": {time.Hour}}, now)
	require.Equal(t, now.Add(time.Hour), got.DueAt, "* applies to every other queue")
}

func TestBackoffOnlyAfterFailures(t *testing.T) {
	t.Parallel()
	inQ := func(t *Task) { t.Queue = "q" }
	got, _ := claimed(inQ).Report(Report{AppID: "a", Outcome: Released}, slowBackoff, now)
	require.Equal(t, Pending, got.State)
	got, _ = claimed(inQ, func(t *Task) { t.RetryCount = 3 }).Report(Report{AppID: "a", Outcome: SentFailed, ShouldRetry: true}, slowBackoff, now)
	require.Equal(t, RetriesExhausted, got.Reason, "no retry is left")
}

func TestTaskExpiresDuringBackoff(t *testing.T) {
	t.Parallel()
	soon := now.Add(time.Second)
	got, _ := claimed(func(t *Task) { t.Queue, t.ExpiresAt = "q", soon }).Report(Report{AppID: "a", Outcome: SentFailed, ShouldRetry: true}, slowBackoff, now)
	require.Equal(t, Scheduled, got.State)
	require.Equal(t, soon, got.DueAt)
	got, verdict := got.SettleDue(slowBackoff, soon)
	require.Equal(t, ExpiredVerdict, verdict)
	require.Equal(t, Expired, got.Reason)
}

func TestParseBackoff(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Backoff{
		"":                          {},
		"*=0":                       {"*": {0}},
		"wechat=5s,30s,2m,10m":      {"wechat": {5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}},
		" wechat = 5s , 1m ; *=1s;": {"wechat": {5 * time.Second, time.Minute}, "*": {time.Second}},
	} {
		var got Backoff
		require.NoError(t, got.Decode(text), text)
		require.Equal(t, want, got, text)
	}
}

func TestParseBackoffErrors(t *testing.T) {
	t.Parallel()
	for text, fault := range map[string]string{
		"5s":                                 `"5s" has no valid queue name`,
		"=5s":                                `"=5s" has no valid queue name`,
		"a b=5s":                             `"a b=5s" has no valid queue name`,
		"a=5s;b=1s;a=1s":                     `"a" is set twice`,
		"a=":                                 `"" is not a time from 0 to 168h`,
		"a=5":                                `"5" is not a time from 0 to 168h`,
		"a=5s,-1s":                           `"-1s" is not a time from 0 to 168h`,
		"a=169h":                             `"169h" is not a time from 0 to 168h`,
		"a=1s,1s,1s,1s,1s,1s,1s,1s,1s,1s,1s": `at most 10 retries`,
	} {
		got := Backoff{"kept": {1}}
		err := got.Decode(text)
		require.ErrorContains(t, err, fault, text)
		require.ErrorContains(t, err, `as "wechat=5s,30s,2m,10m;*=0"`, text)
		require.Equal(t, Backoff{"kept": {1}}, got, text)
	}
}
