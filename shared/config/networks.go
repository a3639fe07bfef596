package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Networks is a list of networks, separated by commas in the environment. An address without a prefix length, such as
// 10.1.2.3, is a network with this one address.
type Networks []netip.Prefix

// Decode reads the list, for envconfig.
func (n *Networks) Decode(value string) error {
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(part)
		if addr, addrErr := netip.ParseAddr(part); addrErr == nil {
			prefix, err = addr.Unmap().Prefix(addr.Unmap().BitLen())
		}
		if err != nil {
			return fmt.Errorf("must be networks such as 10.0.0.0/8 or fd00::/8, separated by commas; %q is no network", part)
		}
		*n = append(*n, prefix.Masked())
	}
	return nil
}

// Contains reports whether addr is in one of the networks.
func (n Networks) Contains(addr netip.Addr) bool {
	return slices.ContainsFunc(n, func(p netip.Prefix) bool { return p.Contains(addr) })
}
