package fn

import (
	"net/netip"
	"strings"

	"github.com/sendonce/sendonce/shared/config"
)

// sourceAddress is the address that a call came from: the peer's, unless the peer is a
// trusted proxy; then the right-most address of X-Forwarded-For that is not one. Addresses
// further left were written by the caller and prove nothing.
func sourceAddress(trusted config.Networks, peer string, forwardedFor []string) string {
	addr, ok := parseAddr(peer)
	if !ok {
		return ""
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
// dropped: it means something on this machine only.
func parseAddr(s string) (netip.Addr, bool) {
	if withPort, err := netip.ParseAddrPort(s); err == nil {
		return withPort.Addr().Unmap().WithZone(""), true
	}
	addr, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return addr.Unmap().WithZone(""), err == nil
}
