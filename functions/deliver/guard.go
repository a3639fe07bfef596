package deliver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/sendonce/sendonce/shared/config"
)

// errNotPublic is shown to the caller that registered the URL. It is the same for an address that is not public and for a
// name that does not resolve. Two different errors would reveal which names exist in the internal network.
var errNotPublic = errors.New("the host's name does not resolve to a public address; an operator can allow other networks with SENDONCE_OUTGOING_NETWORKS")

// guard decides which addresses may be called: all in the networks that the operator allows, and all other public
// addresses except those of this host. Services on this host may trust calls from it, even to its public address.
type guard struct {
	allowed    config.Networks
	interfaces func() ([]net.Addr, error) // net.InterfaceAddrs, except in tests

	mu    sync.Mutex
	own   map[netip.Addr]bool
	ownAt time.Time // when own was read
}

// ownCacheTime is how long the addresses of this host are cached.
const ownCacheTime = 5 * time.Second

func newGuard(allowed config.Networks) *guard {
	return &guard{allowed: allowed, interfaces: net.InterfaceAddrs}
}

// control is the ControlContext of a net.Dialer. The dialer calls it with each resolved address just before it connects,
// so DNS cannot return another address between the check and the connection.
func (g *guard) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !g.permits(to.Addr()) {
		return errNotPublic
	}
	return nil
}

func (g *guard) permits(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("") // no prefix contains an address with a zone
	if g.allowed.Contains(addr) {
		return true
	}
	if nat64.Contains(addr) {
		embedded := addr.As16()
		return g.permits(netip.AddrFrom4([4]byte(embedded[12:])))
	}
	return addr.IsValid() && !NonPublicNetworks.Contains(addr) && !g.isOwn(addr)
}

// isOwn reports whether addr is an address of this host. It returns true if the addresses of this host cannot be read, so
// that addr is refused.
func (g *guard) isOwn(addr netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.own == nil || time.Since(g.ownAt) > ownCacheTime {
		all, err := g.interfaces()
		if err != nil {
			return true
		}
		g.own, g.ownAt = make(map[netip.Addr]bool, len(all)), time.Now()
		for _, a := range all {
			if network, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(network.IP); ok {
					g.own[ip.Unmap()] = true
				}
			}
		}
	}
	return g.own[addr]
}

// nat64 is the well-known prefix of NAT64. The last 32 bits of such an address are the IPv4 address that is reached.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// NonPublicNetworks is the list of networks whose addresses are not public: those that the IANA special-purpose address
// registries list as not globally reachable, unassigned ones, and all of 6to4 and Teredo, which embed an IPv4 address and
// have no public servers. deploy/knative/base/network.yaml has the same list.
var NonPublicNetworks = config.Networks{
	netip.MustParsePrefix("0.0.0.0/8"),        // this host
	netip.MustParsePrefix("10.0.0.0/8"),       // private
	netip.MustParsePrefix("100.64.0.0/10"),    // carrier-grade NAT
	netip.MustParsePrefix("127.0.0.0/8"),      // loopback
	netip.MustParsePrefix("168.63.129.16/32"), // Azure's host agent, which has a public address
	netip.MustParsePrefix("169.254.0.0/16"),   // link-local, and the metadata service of most clouds
	netip.MustParsePrefix("172.16.0.0/12"),    // private
	netip.MustParsePrefix("192.0.0.0/24"),     // protocol assignments
	netip.MustParsePrefix("192.0.2.0/24"),     // documentation
	netip.MustParsePrefix("192.88.99.0/24"),   // 6to4 relays
	netip.MustParsePrefix("192.168.0.0/16"),   // private
	netip.MustParsePrefix("198.18.0.0/15"),    // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"),  // documentation
	netip.MustParsePrefix("203.0.113.0/24"),   // documentation
	netip.MustParsePrefix("224.0.0.0/3"),      // multicast, reserved, broadcast

	// All of IPv6 except 2000::/3, the only block that is assigned for global unicast.
	netip.MustParsePrefix("::/3"),
	netip.MustParsePrefix("4000::/2"),
	netip.MustParsePrefix("8000::/1"),

	netip.MustParsePrefix("2001::/23"),     // protocol assignments: Teredo, benchmarks, ORCHID
	netip.MustParsePrefix("2001:db8::/32"), // documentation
	netip.MustParsePrefix("2002::/16"),     // 6to4
	netip.MustParsePrefix("3fff::/20"),     // documentation
}
