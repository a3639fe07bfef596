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
	"github.com/sendonce/sendonce/shared/outgoing"
)

// errNotPublic is shown to the caller that registered the URL, even if the host's name does not resolve at all: a different error
// would reveal which names exist in the internal network.
var errNotPublic = errors.New("the host's name does not resolve to a public address; an operator can allow other networks with SENDONCE_OUTGOING_NETWORKS")

// guard decides which addresses may be called: all addresses in the networks that the operator allows, and all other public addresses
// except those of this host. Services on this host might trust calls that come from this host.
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

// control is the ControlContext of a net.Dialer. The dialer calls control with each resolved address just before it connects, so
// DNS cannot return another address between the check and the connection.
func (g *guard) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !g.permits(to.Addr()) {
		return errNotPublic
	}
	return nil
}

func (g *guard) permits(addr netip.Addr) bool {
	return outgoing.Permits(addr, g.allowed, g.isOwn)
}

// isOwn reports whether addr is an address of this host. It also returns true if the addresses of this host cannot be read.
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
