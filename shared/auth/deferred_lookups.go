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
	deferredLookupInterval = 700 * time.Millisecond // so that names are found before Retry-After, which is 1 s
	deferredLookupLimit    = 4096                   // names of one query, which takes some 10 ms
)

// deferredLookups are the names that are looked up together, for calls that were not
// looked up for.
type deferredLookups struct {
	findExisting func(ctx context.Context, names []string) (existing []string, err error)
	log          *slog.Logger

	mu        sync.Mutex
	names     map[string]bool
	byAddress map[netip.Prefix]int // how many of names an address added
	running   bool
}

// add calls found within about deferredLookupInterval if there is a caller of that name.
// An address may add as many names as there are places left for others, so one that sends very
// many names takes half of the places. What an address sends beyond that is dropped: its
// callers try again.
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

// run looks names up until there is none. It begins with a pause, so that a flood
// of them costs one query in each interval.
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
			n.log.Warn("new callers cannot be looked up", "cause", err.Error()) // who comes again is looked up again
		}
		for _, name := range existing {
			found(name)
		}
	}
}
