// Package outgoing decides which IP addresses the service may call. The function deliver checks each address just before it
// connects. Functions that store URLs refuse a URL whose host is an address that may not be called.
package outgoing

import (
	"net/netip"
	"net/url"

	"github.com/sendonce/sendonce/shared/config"
)

// Permits reports whether an address may be called: it is in the allowed networks, or it is public and isOwn returns false.
// isOwn reports whether an address belongs to this host; nil if that is unknown. A NAT64 address may also be called if its IPv4 address may.
func Permits(addr netip.Addr, allowed config.Networks, isOwn func(netip.Addr) bool) bool {
	addr = addr.Unmap().WithZone("") // no prefix contains an address with a zone
	if allowed.Contains(addr) {
		return true
	}
	if nat64.Contains(addr) {
		embedded := addr.As16()
		return Permits(netip.AddrFrom4([4]byte(embedded[12:])), allowed, isOwn)
	}
	return addr.IsValid() && !NonPublicNetworks.Contains(addr) && (isOwn == nil || !isOwn(addr))
}

// PermitsURL reports whether the host of a URL is an address that may be called, or a name. It neither resolves names nor knows
// the addresses of the host that will call the URL: deliver checks both when it calls the URL.
func PermitsURL(text string, allowed config.Networks) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return err != nil || Permits(addr, allowed, nil)
}

// nat64 is the well-known prefix of NAT64. The last 32 bits of such an address are the IPv4 address that is reached.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// NonPublicNetworks are the networks whose addresses may be called only if the operator allows it: those that the IANA
// special-purpose address registries list as not globally reachable; unassigned networks; 6to4 and Teredo, whose addresses embed
// an IPv4 address and belong to no public servers; and one address of Azure. deploy/knative/base/network.yaml has the same list.
var NonPublicNetworks = config.Networks{
	netip.MustParsePrefix("0.0.0.0/8"),        // this host
	netip.MustParsePrefix("10.0.0.0/8"),       // private
	netip.MustParsePrefix("100.64.0.0/10"),    // carrier-grade NAT
	netip.MustParsePrefix("127.0.0.0/8"),      // loopback
	netip.MustParsePrefix("168.63.129.16/32"), // Azure's host agent: a public address that only hosts in Azure reach
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
