package fn

import (
	"net/netip"
	"strings"

	"github.com/sendonce/sendonce/shared/config"
)

// sourceAddress returns the address that a call came from; "" if the peer has none. If the peer is not a
// trusted proxy, this is the address of the peer. Otherwise sourceAddress reads X-Forwarded-For from right
// to left, and returns the first address that is not a trusted proxy: the caller may have invented those
// further left. A malformed address ends the search. If all addresses that were read are trusted proxies,
// sourceAddress returns the leftmost of them; if none was read, the peer.
func sourceAddress(trusted config.Networks, peer string, forwardedFor []string) string {
	addr, ok := parseAddr(peer)
	if !ok {
		return ""
	}
	if !trusted.Contains(addr) {
		return addr.String()
	}
	hops := strings.Split(strings.Join(forwardedFor, ","), ",")
	for i := len(hops) - 1; i >= 0 && trusted.Contains(addr); i-- {
		hop, ok := parseAddr(strings.TrimSpace(hops[i]))
		if !ok {
			break
		}
		addr = hop
	}
	return addr.String()
}

// parseAddr reads an address with or without a port. The zone of a link-local address is
// dropped, because it means something only on this machine.
func parseAddr(s string) (netip.Addr, bool) {
	if withPort, err := netip.ParseAddrPort(s); err == nil {
		return withPort.Addr().Unmap().WithZone(""), true
	}
	addr, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return addr.Unmap().WithZone(""), err == nil
}
