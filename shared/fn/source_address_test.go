package fn

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/config"
)

func TestSourceIsRightmostUntrustedAddress(t *testing.T) {
	t.Parallel()
	var proxies config.Networks
	require.NoError(t, proxies.Decode("10.0.0.0/8, 192.168.1.1,fd00::/8"))
	for _, c := range []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"no proxy, no header", "203.0.113.9:4711", nil, "203.0.113.9"},
		{"a header from an untrusted peer is not believed", "203.0.113.9:4711", []string{"1.1.1.1"}, "203.0.113.9"},
		{"one proxy", "10.1.2.3:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{"addresses that the caller added prove nothing", "10.1.2.3:80", []string{"6.6.6.6, 203.0.113.9"}, "203.0.113.9"},
		{"several headers are one list", "10.1.2.3:80", []string{"6.6.6.6", "203.0.113.9", "192.168.1.1"}, "203.0.113.9"},
		{"if all are trusted, the left-most one", "10.1.2.3:80", []string{"10.9.9.9, 10.8.8.8"}, "10.9.9.9"},
		{"a trusted peer without a header is the source", "10.1.2.3:80", nil, "10.1.2.3"},
		{"a hop that is no address ends the search", "10.1.2.3:80", []string{"203.0.113.9, unknown, 10.8.8.8"}, "10.8.8.8"},
		{"ports and brackets", "[fd00::1]:80", []string{"[2001:db8::5]:4711"}, "2001:db8::5"},
		{"a bracketed address without a port", "[fd00::1]:80", []string{"[2001:db8::5]"}, "2001:db8::5"},
		{"an IPv4 address written as IPv6 is IPv4", "[::ffff:10.1.2.3]:80", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{"a zone is dropped", "[fe80::1%eth0]:80", nil, "fe80::1"},
		{"a Unix socket has no address", "@", []string{"1.1.1.1"}, ""},
	} {
		require.Equal(t, c.want, sourceAddress(proxies, c.peer, c.forwarded), c.name)
	}
}
