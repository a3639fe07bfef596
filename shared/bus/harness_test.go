package bus

import (
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

// newBroker starts a server and returns it with a Bus that has created its streams there.
func newBrokerWithStreams(t *testing.T) (*bustest.Broker, *Bus) {
	t.Helper()
	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
	return broker, b
}

func newBus(t *testing.T, url string) *Bus { return newBusLogging(t, url, io.Discard) }

func newBusLogging(t *testing.T, url string, log io.Writer) *Bus {
	t.Helper()
	b, err := Open(Config{URL: url, Name: t.Name(), Replicas: 1}, slog.New(slog.NewTextHandler(log, nil)))
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
