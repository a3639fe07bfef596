package console

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

func TestTimelineJoinsEventsAndWebhooks(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	steps := timeline(
		[]api.TaskEvent{{At: at, Event: "received"}, {At: at.Add(2 * time.Second), Event: "claimed"}, {At: at.Add(5 * time.Second), Event: "report"}},
		[]api.DeliveryResponse{{ID: "d", URL: "https://example.com", Tries: []api.DeliveryTry{{At: at.Add(6 * time.Second), Status: 500}, {At: at.Add(16 * time.Second), Status: 200}}}},
	)
	var since []time.Duration
	for _, s := range steps {
		since = append(since, s.Since)
	}
	require.Equal(t, []time.Duration{0, 2 * time.Second, 3 * time.Second, time.Second, 10 * time.Second}, since)
	require.Equal(t, 2, steps[4].Webhook.Number)
	require.Equal(t, 200, steps[4].Webhook.Status)
	require.Empty(t, timeline(nil, nil))
}
