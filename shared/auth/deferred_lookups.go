package auth

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/loglimit"
)

const (
	deferredLookupInterval = 700 * time.Millisecond // shorter than the Retry-After of the refused calls: at least 1 s
	deferredLookupLimit    = 4096                   // names in one query, which takes some 10 ms
)

// deferredLookups collects the names of calls that were refused without a lookup, and looks
// them up together, to find out which of them are names of callers.
type deferredLookups struct {
	findExisting func(ctx context.Context, names []string) (existing []string, err error)
	onExisting   func(name string) // called for each name that findExisting has returned
	log          *slog.Logger
	failures     loglimit.Limit

	mu        sync.Mutex
	names     map[string]bool
	byAddress map[netip.Prefix]int // how many of names were added by calls from an address
	running   bool
}

// add adds a name to the next query. If an address has already added as many names as there is room left for, add ignores
// the name. So one address uses at most half of deferredLookupLimit. A later call can add an ignored name.
func (d *deferredLookups) add(name string, address netip.Prefix) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] || d.byAddress[address] >= deferredLookupLimit-len(d.names) {
		return
	}
	if d.names == nil {
		d.names, d.byAddress = map[string]bool{}, map[netip.Prefix]int{}
	}
	d.names[name] = true
	d.byAddress[address]++
	if !d.running {
		d.running = true
		go d.run()
	}
}

// run looks up the added names until no names are left. It waits before each query, so that any number
// of names causes at most one query in each interval.
func (d *deferredLookups) run() {
	for {
		time.Sleep(deferredLookupInterval)
		d.mu.Lock()
		names := slices.Collect(maps.Keys(d.names))
		d.names, d.byAddress, d.running = nil, nil, len(names) > 0
		d.mu.Unlock()
		if len(names) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
		existing, err := d.findExisting(ctx, names)
		cancel()
		if err != nil {
			// The next calls add their names again.
			if unlogged, log := d.failures.Next(); log {
				d.log.Warn("new callers cannot be looked up", "cause", err.Error(), "unlogged", unlogged)
			}
		}
		for _, name := range existing {
			d.onExisting(name)
		}
	}
}
