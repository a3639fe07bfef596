package e2e

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// internals matches texts and numbers of NATS and its client, and names of streams.
var internals = regexp.MustCompile(`(?i:nats|jetstream|err_code|no responders|maximum (bytes|messages)|timeout|deadline|127\.0\.0\.1)` +
	`|\b10\d{3}\b|\b(MESSAGES|USERS|ACCEPTED|EVENTS|WAKE|DEADLETTERS)\b`)

// testErrorTexts starts a system with a number of NATS servers, calls fail, which makes NATS fail, and submits messages.
// No text for the submitter may match internals.
func testErrorTexts(t *testing.T, size int, fail func(*cluster.Cluster, sandbox.NATSCluster)) {
	t.Helper()
	servers := sandbox.NewNATSCluster(t, size)
	w := twoPhaseAt(t, servers.URL(), "TWO_PHASE_FAIL_OPEN=false", fmt.Sprint("SENDONCE_NATS_REPLICAS=", size))
	shop := w.Admin.NewCaller("shop", "submitter")
	accepted := shop.Post(cluster.MessagesPath, `{"client_msg_id":"0","to":"user:bob","data":"x","ack":"accepted"}`)
	require.Equal(t, 202, accepted.Status, accepted.Text)
	fail(w, servers)

	refused := shop.Post(cluster.MessagesPath, `{"client_msg_id":"1","to":"user:bob","data":"x","ack":"accepted"}`)
	require.Equal(t, 503, refused.Status, refused.Text)
	require.NotEmpty(t, refused.Header.Get("Retry-After"))
	require.NotRegexp(t, internals, refused.Text)
	for key, to := range map[string]string{"3": "user:bob", "4": "msg.orders.paid"} {
		saved := shop.Post(cluster.MessagesPath, `{"client_msg_id":"`+key+`","to":"`+to+`","data":"x"}`)
		require.Equal(t, 200, saved.Status, "a saved message waits for NATS: %s", saved.Text)
		var lastError any
		cluster.Eventually(t, func() bool {
			w.Admin.Tick("relay") // without NATS there is no wake-up
			lastError = shop.Get(saved.Header.Get("Location")).Data("last_error")
			return lastError != nil
		})
		t.Logf("%s: %s", to, lastError)
		require.NotRegexp(t, internals, lastError)
	}
}

func TestErrorsForSubmittersNameNoInternals(t *testing.T) {
	t.Parallel()
	t.Run("stream_full", func(t *testing.T) {
		t.Parallel()
		testErrorTexts(t, 1, func(w *cluster.Cluster, _ sandbox.NATSCluster) {
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
	t.Run("nats_unavailable", func(t *testing.T) {
		t.Parallel()
		testErrorTexts(t, 1, func(_ *cluster.Cluster, servers sandbox.NATSCluster) { servers[0].Kill() })
	})
}

func TestErrorsWithoutStreamLeaderNameNoInternals(t *testing.T) {
	cluster.OnlyWithClusters(t)
	t.Parallel()
	testErrorTexts(t, 3, func(_ *cluster.Cluster, servers sandbox.NATSCluster) {
		servers[1].Kill()
		servers[2].Kill()
	})
}
