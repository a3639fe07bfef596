package e2e

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// internals matches what a submitter must not read about the broker: texts and numbers
// of NATS and its client, and the names of its streams.
var internals = regexp.MustCompile(`(?i:nats|jetstream|err_code|no responders|maximum (bytes|messages)|timeout|deadline|127\.0\.0\.1)` +
	`|\b10\d{3}\b|\b(MESSAGES|USERS|ACCEPTED|EVENTS|WAKE|DEADLETTERS)\b`)

// textsNameNoInternals submits while the broker fails, and reads every text that a
// submitter is shown about it.
func textsNameNoInternals(t *testing.T, servers sandbox.NATSCluster, replicas string, fail func(*cluster.Cluster)) {
	t.Helper()
	w := twoPhaseAt(t, servers.URL(), "TWO_PHASE_FAIL_OPEN=false", "SENDONCE_NATS_REPLICAS="+replicas)
	shop := w.Admin.NewCaller("shop", "submitter")
	fine := shop.Post(cluster.MessagesPath, `{"client_msg_id":"0","to":"user:bob","data":"x","ack":"accepted"}`)
	require.Equal(t, 202, fine.Status, fine.Text)
	fail(w)

	refused := shop.Post(cluster.MessagesPath, `{"client_msg_id":"1","to":"user:bob","data":"x","ack":"accepted"}`)
	require.Equal(t, 503, refused.Status, refused.Text)
	require.NotEmpty(t, refused.Header.Get("Retry-After"))
	require.NotRegexp(t, internals, refused.Text)
	for key, to := range map[string]string{"3": "user:bob", "4": "msg.orders.paid"} {
		saved := shop.Post(cluster.MessagesPath, `{"client_msg_id":"`+key+`","to":"`+to+`","data":"x"}`)
		require.Equal(t, 200, saved.Status, "what is saved waits: %s", saved.Text)
		var shown any
		cluster.Eventually(t, func() bool {
			w.Admin.Tick("relay") // no wake-up passes a broker that is away
			shown = shop.Get(saved.Header.Get("Location")).Data("last_error")
			return shown != nil
		})
		t.Logf("%s: %s", to, shown)
		require.NotRegexp(t, internals, shown)
	}
}

func TestErrorsForSubmittersNameNoInternals(t *testing.T) {
	t.Parallel()
	t.Run("stream_full", func(t *testing.T) {
		t.Parallel()
		servers := sandbox.NewNATSCluster(t, 1)
		textsNameNoInternals(t, servers, "1", func(w *cluster.Cluster) {
			js := w.JetStream()
			for stream, subject := range map[string]string{"USERS": "inbox.x", "MESSAGES": "msg.x", "ACCEPTED": "acc.0.x"} {
				_, err := js.Publish(t.Context(), subject, []byte("x"))
				require.NoError(t, err)
				s, err := js.Stream(t.Context(), stream)
				require.NoError(t, err)
				full := s.CachedInfo().Config
				full.MaxMsgs = 1
				_, err = js.UpdateStream(t.Context(), full)
				require.NoError(t, err)
			}
		})
	})
	t.Run("broker_away", func(t *testing.T) {
		t.Parallel()
		servers := sandbox.NewNATSCluster(t, 1)
		textsNameNoInternals(t, servers, "1", func(*cluster.Cluster) { servers[0].Kill() })
	})
}

func TestErrorsForSubmittersWithoutLeader(t *testing.T) {
	cluster.OnlyWithClusters(t)
	t.Parallel()
	servers := sandbox.NewNATSCluster(t, 3)
	textsNameNoInternals(t, servers, "3", func(*cluster.Cluster) {
		servers[1].Kill()
		servers[2].Kill()
	})
}
