package auth

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	deferredLookupInterval = 700 * time.Millisecond // shorter than the Retry-After of the refused calls, which is 1 s
	deferredLookupLimit    = 4096                   // names in one query, which takes some 10 ms
)

// deferredLookups collects the names of calls that were refused without a lookup, and looks
// them up together.
type deferredLookups struct {
	findExisting func(ctx context.Context, names []string) (existing []string, err error)
	log          *slog.Logger

	mu        sync.Mutex
	names     map[string]bool
	byAddress map[netip.Prefix]int // how many names an address added
	running   bool
}

// add calls found after about deferredLookupInterval if there is a caller with that name.
// An address may have as many names as there is room for further ones, so one address has at most
// half of deferredLookupLimit. Further names are dropped: they are added when their callers try again.
func (n *deferredLookups) add(name string, address netip.Prefix, found func(name string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.names[name] || n.byAddress[address] >= deferredLookupLimit-len(n.names) {
		return
	}
	if n.names == nil {
		n.names, n.byAddress = map[string]bool{}, map[netip.Prefix]int{}
	}
	n.names[name] = true
	n.byAddress[address]++
	if !n.running {
		n.running = true
		go n.run(found)
	}
}

// run looks up the names that were added, until there are none. It waits before each query, so
// that any number of names causes at most one query in each interval.
func (n *deferredLookups) run(found func(name string)) {
	for {
		time.Sleep(deferredLookupInterval)
		n.mu.Lock()
		names := slices.Collect(maps.Keys(n.names))
		n.names, n.byAddress, n.running = nil, nil, len(names) > 0
		n.mu.Unlock()
		if len(names) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
		existing, err := n.findExisting(ctx, names)
		cancel()
		if err != nil {
			n.log.Warn("new callers cannot be looked up", "cause", err.Error()) // the next calls add their names again
		}
		for _, name := range existing {
			found(name)
		}
	}
}
