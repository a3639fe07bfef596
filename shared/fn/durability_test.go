package fn

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
	"github.com/sendonce/sendonce/shared/settings"
)

// oldNATS returns the URL of a proxy of a NATS server with the stream of accepted messages. The proxy reports version
// 2.11.9.
func oldNATS(t *testing.T) string {
	t.Helper()
	broker := natsserver.New(t, natsserver.Options{})
	address := broker.URL()[len("nats://"):]
	nc, err := nats.Connect(broker.URL())
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: bus.StreamAccepted, Subjects: []string{bus.AcceptPrefix + ">"}})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			upstream, err := net.Dial("tcp", address)
			if err != nil {
				client.Close()
				continue
			}
			go func() { defer upstream.Close(); _, _ = io.Copy(upstream, client) }()
			go func() {
				defer client.Close()
				lines := bufio.NewReader(upstream)
				for {
					// The server sends INFO again after a client has logged in.
					line, err := lines.ReadBytes('\n')
					_, _ = client.Write(bytes.Replace(line, []byte(`"version":"`+natsd.VERSION), []byte(`"version":"2.11.9`), 1))
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	return "nats://" + l.Addr().String()
}

func TestTwoPhaseDoesNotStartOnOldNATS(t *testing.T) {
	t.Parallel()
	cfg := settings.Config{Username: "admin", Password: "secret", TwoPhase: settings.TwoPhase{Enabled: true, Durability: bus.DurableProcess, Stream: bus.StreamAccepted, Shards: 1}}
	cfg.Bus.URL, cfg.Bus.Replicas = oldNATS(t), 1
	env, err := NewEnv(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer env.Close()
	began := time.Now()
	_, err = assemble(t.Context(), env, nil)
	require.ErrorContains(t, err, "TWO_PHASE_ENABLED")
	require.ErrorContains(t, err, "nats-server 2.12 or later")
	require.Less(t, time.Since(began), verifyTimeout)
}
