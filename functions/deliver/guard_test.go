package deliver

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/config"
)

func networks(t *testing.T, list string) config.Networks {
	t.Helper()
	var n config.Networks
	require.NoError(t, n.Decode(list))
	return n
}

func TestGuardRefusesInvalidAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "8.8.8.8", "example.com:443", "/run/docker.sock"} {
		require.ErrorIs(t, newGuard(nil).control(t.Context(), "tcp", address, nil), errNotPublic, address)
	}
	require.NoError(t, newGuard(nil).control(t.Context(), "tcp6", "[2606:4700::1111]:443", nil))
}

func TestGuardRefusesOwnPublicAddresses(t *testing.T) {
	t.Parallel()
	newHostGuard := func(allowed string) *guard {
		g := newGuard(networks(t, allowed))
		g.interfaces = func() ([]net.Addr, error) {
			return []net.Addr{
				&net.IPNet{IP: net.ParseIP("8.9.10.11"), Mask: net.CIDRMask(24, 32)},
				&net.IPNet{IP: net.ParseIP("2606:4700::5"), Mask: net.CIDRMask(64, 128)},
			}, nil
		}
		return g
	}
	own := []string{"8.9.10.11", "::ffff:8.9.10.11", "64:ff9b::8.9.10.11", "2606:4700::5", "2606:4700::5%eth0"}
	for _, a := range own {
		require.False(t, newHostGuard("").permits(netip.MustParseAddr(a)), a)
		require.True(t, newHostGuard("8.9.10.11,2606:4700::5").permits(netip.MustParseAddr(a)), a)
	}
	for _, a := range []string{"8.9.10.12", "2606:4700::6"} {
		require.True(t, newHostGuard("").permits(netip.MustParseAddr(a)), "another address of the network: %s", a)
	}

	g := newHostGuard("")
	working := g.interfaces
	require.True(t, g.permits(netip.MustParseAddr("1.1.1.1")))
	g.interfaces = func() ([]net.Addr, error) { return nil, errors.New("the system returned an error") }
	require.True(t, g.permits(netip.MustParseAddr("1.1.1.1")), "the cached addresses are used")
	g.ownAt = g.ownAt.Add(-2 * ownCacheTime)
	require.False(t, g.permits(netip.MustParseAddr("1.1.1.1")), "it is unknown whether this is an address of the host")
	g.interfaces = working
	require.True(t, g.permits(netip.MustParseAddr("1.1.1.1")))
}
