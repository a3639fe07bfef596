package e2e

import (
	"fmt"
	"testing"

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
	cluster.Address(t, start("TWO_PHASE_DURABILITY=replicated-host")) // two-phase is off, so the durability is not checked
}

func TestSyncedStreamIsDurableOnHost(t *testing.T) {
	t.Parallel()
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	monitor := fmt.Sprint("127.0.0.1:", port)
	nats := natsserver.New(t, natsserver.Options{Config: "http: " + monitor + "\njetstream { sync_interval: always }"})
	require.NoError(t, cluster.EnsureStreams(t, nats.URL()))
	w := cluster.NewAt(t, sandbox.NewDatabase(t), nats.URL(), "TWO_PHASE_ENABLED=true",
		"TWO_PHASE_DURABILITY=host", "TWO_PHASE_NATS_MONITOR_URL=http://"+monitor)
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
