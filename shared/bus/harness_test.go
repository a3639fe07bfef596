package bus

import (
	"io"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

func newBrokerWithStreams(t *testing.T) (*bustest.Broker, *Bus) {
	t.Helper()
	broker := bustest.NewBroker(t)
	return broker, newBusWithStreams(t, Config{URL: broker.URL()})
}

// newBusWithStreams returns a Bus that has created its streams.
func newBusWithStreams(t *testing.T, cfg Config) *Bus {
	t.Helper()
	b := openBus(t, cfg, io.Discard)
	require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
	return b
}

func newBus(t *testing.T, url string) *Bus {
	t.Helper()
	return openBus(t, Config{URL: url}, io.Discard)
}

func openBus(t *testing.T, cfg Config, log io.Writer) *Bus {
	t.Helper()
	cfg.Replicas = max(cfg.Replicas, 1)
	b, err := Open(cfg, slog.New(slog.NewTextHandler(log, nil)))
	require.NoError(t, err)
	t.Cleanup(b.Close)
	return b
}

func eventMessage(id string) Message {
	return Message{Subject: "evt.task.succeeded", MsgID: id, Event: bustest.Event(id)}
}

func publishAll(t *testing.T, b *Bus, messages ...Message) {
	t.Helper()
	for _, err := range b.Publish(bustest.Within(t, bustest.Soon), messages) {
		require.NoError(t, err)
	}
}

// fetchAndAck fetches n messages and acknowledges them.
func fetchAndAck(t *testing.T, c jetstream.Consumer, n int) (messages []jetstream.Msg) {
	t.Helper()
	batch, err := c.Fetch(n)
	require.NoError(t, err)
	for m := range batch.Messages() {
		require.NoError(t, m.DoubleAck(t.Context()))
		messages = append(messages, m)
	}
	require.Len(t, messages, n)
	return messages
}
