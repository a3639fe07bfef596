package e2e

import (
	"path/filepath"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

func TestStartFailsIfStreamIsLessDurableThanRequired(t *testing.T) {
	t.Parallel()
	bin, nats := cluster.Binary(t), cluster.NewNATS(t)
	start := func(more ...string) *sandbox.Process {
		return cluster.StartProcess(t, bin, cluster.Settings("postgres://u@127.0.0.1:1/x", append(more, "NATS_URL="+nats.URL())...))
	}
	require.NoError(t, cluster.EnsureStreams(t, nats.URL()))
	cluster.Address(t, start("TWO_PHASE_ENABLED=true", "TWO_PHASE_DURABILITY=process"))
	for required, remedy := range map[string]string{
		"host":            `gives process: set sync_interval: always`,
		"replicated":      `gives process: keep the stream on 3 hosts (set SENDONCE_NATS_REPLICAS=3 before the stream is created, or edit the stream), or require less`,
		"replicated-host": `or edit the stream) and set sync_interval: always`,
	} {
		p := start("TWO_PHASE_ENABLED=true", "TWO_PHASE_DURABILITY="+required)
		cluster.WaitExit(t, p)
		require.Equal(t, 2, p.ExitCode(), p.Output())
		require.Contains(t, p.Output(), `  TWO_PHASE_DURABILITY is "`+required+`" but the stream ACCEPTED gives process: `)
		require.Contains(t, p.Output(), remedy)
		require.NotContains(t, p.Output(), `"listening"`)
	}
	cluster.Address(t, start("TWO_PHASE_DURABILITY=replicated-host")) // it starts: two-phase is off, so the setting is not checked
}

func TestSyncedStreamIsDurableOnHost(t *testing.T) {
	t.Parallel()
	s, err := natsd.NewServer(&natsd.Options{
		Host: "127.0.0.1", Port: natsd.RANDOM_PORT, HTTPHost: "127.0.0.1", HTTPPort: natsd.RANDOM_PORT,
		JetStream: true, StoreDir: filepath.Join(t.TempDir(), "nats"), JetStreamMaxStore: 1 << 40, SyncAlways: true,
		NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(20*time.Second))
	require.NoError(t, cluster.EnsureStreams(t, s.ClientURL()))
	w := cluster.NewAt(t, sandbox.NewDatabase(t), s.ClientURL(), "TWO_PHASE_ENABLED=true",
		"TWO_PHASE_DURABILITY=host", "TWO_PHASE_NATS_MONITOR_URL=http://"+s.MonitorAddr().String())
	w.StartWithoutTrigger()
	require.Equal(t, "host", w.Accept("c-1", `1`).Durability)
}

func TestNothingIsAcceptedBeforeDurabilityIsKnown(t *testing.T) {
	t.Parallel()
	broker := natsserver.Options{Dir: t.TempDir()}
	nats := cluster.NATSIn(t, broker)
	broker.Port = nats.Port()
	require.NoError(t, nats.Stop())
	w := cluster.NewAt(t, sandbox.NewDatabase(t), nats.URL(), "TWO_PHASE_ENABLED=true", "TWO_PHASE_DURABILITY=process")
	w.StartWithoutTrigger()
	require.Contains(t, w.Process(cluster.All).Output(), "no message is acknowledged before it is saved: it is not known")
	response := w.Admin.Post(cluster.MessagesPath, `{"client_msg_id":"early","to":"user:bob","data":1,"ack":"accepted"}`)
	require.Equal(t, []any{200, "saved"}, []any{response.Status, response.Data("ack")}, response.Text)
	cluster.NATSIn(t, broker)
	require.NoError(t, cluster.EnsureStreams(t, nats.URL()))
	cluster.Eventually(t, func() bool {
		return w.Admin.Post(cluster.MessagesPath, `{"client_msg_id":"late","to":"user:bob","data":1,"ack":"accepted"}`).Status == 202
	})
	require.Equal(t, "process", w.Accept("late", `1`).Durability)
}
