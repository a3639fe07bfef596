package exporter

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/store/overview"
)

// Prometheus drops the second of two samples with the same labels, so a queue with the name of the label of all others would hide
// the others.
func TestNamesOfQueuesAndAppsHideNoOthers(t *testing.T) {
	t.Parallel()
	pending := func(name string) overview.Queue {
		return overview.Queue{Name: name, Pending: overview.Backlog{Count: overview.Count{N: 1}}}
	}
	processing := func(app string) overview.Sender {
		return overview.Sender{App: app, Processing: overview.Count{N: 1}}
	}
	r := &metrics.Registry{}
	r.Collect(func(s *metrics.Scrape) {
		show(s, overview.Snapshot{
			Queues: []overview.Queue{pending("other"), pending("other_"), pending("others")}, OtherQueues: pending(""),
			Senders: []overview.Sender{processing("other"), processing("other_"), processing("Other")}, OtherApps: processing(""),
		})
	})
	var series []string
	for line := range strings.Lines(string(r.Text())) {
		name, _, _ := strings.Cut(line, "} ")
		series = append(series, name)
	}
	series = slices.DeleteFunc(series, func(name string) bool { return strings.HasPrefix(name, "#") })
	for _, label := range []string{`{queue="other",state="pending"`, `{queue="other_",state="pending"`, `{queue="other__",state="pending"`, `{queue="others",state="pending"`} {
		require.Contains(t, series, "sendonce_queue_tasks"+label)
	}
	require.Contains(t, series, `sendonce_sender_tasks{app="other"`)
	slices.Sort(series)
	require.Equal(t, slices.Compact(slices.Clone(series)), series, "no two samples have the same name and labels")
}
