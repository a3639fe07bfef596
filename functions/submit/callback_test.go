package submit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestCallbackURLFollowsEndpointRules(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	urls := map[string]bool{
		"https://hook.example.com/a?b=c":                       true,
		"http://hook.example.com:65535":                        true,
		"ftp://hook.example.com":                               false,
		"//hook.example.com":                                   false,
		"user:ann":                                             false,
		"orders.paid":                                          false,
		"https://":                                             false,
		"https://ann:secret@hook.example.com":                  false,
		"https://hook.example.com/#there":                      false,
		"https://hook.example.com/a b":                         false,
		"https://hook.example.com:0":                           false,
		"https://hook.example.com:65536":                       false,
		"https://hook.example.com/" + strings.Repeat("x", 2e3): false,
	}
	n := 0 // number of a subscribe message
	for url, valid := range urls {
		n++
		task := fmt.Sprintf(`{"phone_number":"13800138000","content":"x","callback_url":%q}`, url)
		for name, got := range map[string]cluster.Reply{
			"an endpoint":         s.Post("/api/v1/webhooks/endpoints", fmt.Sprintf(`{"url":%q}`, url)),
			"a task":              s.Post("/api/v1/sms/send", task),
			"a batch":             s.Post("/api/v1/sms/send/batch", `{"items":[`+task+`]}`),
			"a subscribe message": s.Post(cluster.SubscribePath+"send", cluster.Booking(n, fmt.Sprintf(`"callback_url":%q`, url))),
			"a recorded message":  s.Post(cluster.SubscribePath+"record", cluster.Recording(n+100, fmt.Sprintf(`"callback_url":%q`, url))),
		} {
			if valid {
				require.Less(t, got.Status, 300, "%s to %s: %s", name, url, got.Text)
				continue
			}
			require.Contains(t, got.Text, "an https or http URL without user name, fragment and blanks", "%s to %s", name, url)
			require.Contains(t, got.Text, "url", name)
			if name != "a batch" {
				require.Equal(t, 400, got.Status)
			}
		}
	}
}
