package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

// serveAllowing serves all functions. They may call only public addresses and the networks in list, the value of
// SENDONCE_OUTGOING_NETWORKS.
func serveAllowing(t *testing.T, databaseURL, list string) *cluster.Client {
	t.Helper()
	var networks config.Networks
	require.NoError(t, networks.Decode(list))
	return cluster.ServeOn(t, databaseURL, func(c *settings.Config) { c.OutgoingNetworks = networks })
}

// A URL whose host is an IP address that the functions must not call is refused when it is submitted. A host name is
// checked only when the call is due.
func TestPrivateAddressesAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	s := serveAllowing(t, sandbox.NewDatabase(t), "10.1.0.0/16")
	n := 0
	for _, c := range []struct {
		path, field string
		body        func(url string) string
	}{
		{cluster.EndpointsPath, "url", func(url string) string { return fmt.Sprintf(`{"url":%q}`, url) }},
		{"/api/v1/sms/send", "callback_url", func(url string) string {
			return fmt.Sprintf(`{"phone_number":"13800138000","content":"x","callback_url":%q}`, url)
		}},
		{"/api/v1/subscribe/send", "callback_url", func(url string) string { return cluster.Booking(n, fmt.Sprintf(`"callback_url":%q`, url)) }},
		{cluster.MessagesPath, "to", func(url string) string { return fmt.Sprintf(`{"client_msg_id":"m-%d","to":%q,"data":1}`, n, url) }},
	} {
		for _, url := range []string{
			"http://127.0.0.1:8001/x", "https://10.2.0.1/", "http://[::1]/", "http://[::ffff:192.168.1.1]:8080/", "http://[64:ff9b::a00:1]/", "http://169.254.169.254/latest", "http://0.0.0.0/",
		} {
			n++
			refused := s.Post(c.path, c.body(url))
			require.Equal(t, 400, refused.Status, "%s %s: %s", c.path, url, refused.Text)
			require.Equal(t, []string{c.field}, refused.Fields(), "%s %s", c.path, url)
			require.Contains(t, refused.Text, "SENDONCE_OUTGOING_NETWORKS")
		}
		for _, url := range []string{"http://10.1.2.3/", "http://[64:ff9b::a01:203]/", "https://1.1.1.1/", "http://localhost/", "https://shop.test/"} {
			n++
			accepted := s.Post(c.path, c.body(url))
			require.Equal(t, 200, accepted.Status, "%s %s: %s", c.path, url, accepted.Text)
		}
	}
	batch := s.Post("/api/v1/sms/send/batch", `{"items":[{"phone_number":"13800138000","content":"x","callback_url":"http://127.0.0.1/"},{"phone_number":"13800138000","content":"x"}]}`).RequireOK()
	require.Contains(t, batch.Text, "SENDONCE_OUTGOING_NETWORKS")
}

// SENDONCE_OUTGOING_NETWORKS is checked only for new tasks and messages: a repeat gets the response of the first call.
func TestRepeatsAreAcceptedAfterNetworksWereRemoved(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	before, after := serveAllowing(t, url, "127.0.0.1"), serveAllowing(t, url, "")
	for path, body := range map[string]string{
		"/api/v1/sms/send":   `{"phone_number":"13800138000","content":"x","callback_url":"http://127.0.0.1/","idempotency_key":"` + api.NewKey() + `"}`,
		cluster.MessagesPath: `{"client_msg_id":"m","to":"http://127.0.0.1/","data":1}`,
	} {
		first := before.Post(path, body).RequireOK()
		repeat := after.Post(path, body).RequireOK()
		require.Equal(t, first.Text, repeat.Text)
	}
}
