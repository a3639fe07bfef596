package relay_test

import (
	"context"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/bus"
)

const burst = 8000 // events of one caller

// startBurst starts all functions, inserts a burst of events, and calls relay again and again until the test ends. No trigger posts the
// events to deliver. Events that the test acknowledges to recorder count as recorded.
func startBurst(t *testing.T) (c *cluster.Cluster, recorder jetstream.Consumer) {
	t.Helper()
	c = cluster.New(t)
	c.StartWithoutTrigger()
	c.EnsureStreams()
	recorder, err := c.JetStream().CreateOrUpdateConsumer(t.Context(), bus.StreamEvents, jetstream.ConsumerConfig{
		Durable: bus.RecordDurable, AckPolicy: jetstream.AckExplicitPolicy, FilterSubjects: []string{bus.EventPrefix + ">"},
	})
	require.NoError(t, err)
	c.Admin.Exec(`insert into event_outbox (kind, ids, caller_id) select 'task.failed', array[gen_random_uuid()], 1 from generate_series(1, $1)`, burst)
	var calls sync.WaitGroup
	ended := make(chan struct{})
	calls.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
				if !assert.Equal(t, 204, c.Admin.Tick("relay").Status) {
					return
				}
			}
		}
	})
	t.Cleanup(func() { close(ended); calls.Wait() })
	cluster.Eventually(t, func() bool { return c.MessagesIn(bus.StreamEvents) >= 1000 })
	return c, recorder
}

// Events of another caller must not wait until all events of a burst are recorded.
func TestBurstOfEventsDoesNotDelayOtherCallers(t *testing.T) {
	t.Parallel()
	c, recorder := startBurst(t)
	events, err := recorder.Messages()
	require.NoError(t, err)
	defer events.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), cluster.WaitLimit)
	defer cancel()
	const recorded = 1000 // before the event of the other caller is inserted
	other := 0            // the position of the other caller's event in the stream
	for n := range burst + 1 {
		if n == recorded {
			c.Admin.Exec(`insert into event_outbox (kind, ids, caller_id) values ('task.succeeded', array[gen_random_uuid()], 2)`)
		}
		event, err := events.Next(jetstream.NextContext(ctx))
		require.NoError(t, err)
		if event.Subject() == "evt.task.succeeded" {
			other = n
		}
		if n < recorded {
			require.NoError(t, event.DoubleAck(t.Context())) // slower than relay publishes, so the limit is reached
		} else {
			require.NoError(t, event.Ack())
		}
	}
	require.Greater(t, other, recorded)
	require.Less(t, other, recorded+3500) // maxUnrecorded + eventsPerCheck + batchEvents
	cluster.Eventually(t, func() bool { return c.WaitingEvents() == 0 })
}

// Other services read EVENTS, too, so the limit must not apply while deliver records nothing. It must never apply to late
// acknowledgements, which go to another stream.
func TestEventsArePublishedWhileNothingIsRecorded(t *testing.T) {
	t.Parallel()
	c, _ := startBurst(t)
	insertAcks(c.Admin, "ann", 1)
	cluster.Eventually(t, func() bool { return c.MessagesIn(bus.StreamUsers) == 1 })
	require.Less(t, c.MessagesIn(bus.StreamEvents), burst)
	cluster.Eventually(t, func() bool { return c.MessagesIn(bus.StreamEvents) == burst })
}
