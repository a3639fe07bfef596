package auth

import (
	"context"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	CallerTTL        = time.Minute     // how long a cached caller is used
	unknownCallerTTL = 5 * time.Second // how long the cache assumes that a name has no caller, unless Forget is called
	callerLimit      = 4096            // of cached callers, and as many unknown names
	lookupTimeout    = 3 * time.Second // of one query
)

// Callers caches callers by name for CallerTTL, and unknown names for unknownCallerTTL. Unknown names
// have a limit of their own, so that guessed names cannot evict callers. Concurrent calls with the
// same callerQuery share one query.
type Callers struct {
	find    findCaller
	onFound func() // called after a query found a caller; may be nil

	mu       sync.Mutex
	inFlight map[callerQuery]*lookup
	known    map[string]*lookup // includes expired entries
	unknown  map[string]*lookup
}

// findCaller is Source.ByName.
type findCaller func(ctx context.Context, name string, forList bool) (callers.Caller, error)

// callerQuery identifies a query. Calls for lists use another connection pool: if they wait for a connection, they delay
// no other calls.
type callerQuery struct {
	name    string
	forList bool
}

// lookup is a query under way, or its result. The fields after done may be read once done is closed. An entry of known
// that has expired may have no done.
type lookup struct {
	done    chan struct{}
	caller  callers.Caller
	err     error
	expires time.Time
	changed chan struct{} // closed when the caller in the cache may have changed
}

func newCallers(find findCaller) *Callers {
	return &Callers{
		find:     find,
		inFlight: map[callerQuery]*lookup{},
		known:    map[string]*lookup{},
		unknown:  map[string]*lookup{},
	}
}

// seenCaller is the state of a name in the cache.
type seenCaller struct {
	caller callers.Caller // as last read, however long ago; zero if it was never read
	exists bool           // the last successful query found a caller with the name
	fresh  bool           // the cache has a result that has not expired, so a lookup needs no query
}

// seen returns the state of a name without a query.
func (c *Callers) seen(name string) (s seenCaller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if l := c.known[name]; l != nil {
		return seenCaller{l.caller, true, now.Before(l.expires)}
	}
	l := c.unknown[name]
	return seenCaller{fresh: l != nil && now.Before(l.expires)}
}

// noteExisting records that there is a caller with the name.
func (c *Callers) noteExisting(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[name] == nil {
		remember(c.known, name, &lookup{changed: make(chan struct{})})
	}
}

func (c *Callers) byName(ctx context.Context, name string, forList bool) (callers.Caller, error) {
	l, err := c.get(ctx, callerQuery{name, forList})
	return l.caller, err
}

// Current returns the caller with the name. changed is closed when the caller may have changed.
func (c *Callers) Current(ctx context.Context, name string) (caller callers.Caller, changed <-chan struct{}, err error) {
	l, err := c.get(ctx, callerQuery{name: name})
	return l.caller, l.changed, err
}

// get returns the result of a lookup, or an error when ctx ends first.
func (c *Callers) get(ctx context.Context, q callerQuery) (*lookup, error) {
	l := c.lookup(ctx, q)
	select {
	case <-l.done:
		return l, l.err
	case <-ctx.Done():
		return &lookup{}, ctx.Err()
	}
}

// lookup returns the cached result, joins a query under way or starts a query.
func (c *Callers) lookup(ctx context.Context, q callerQuery) *lookup {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cached := range []map[string]*lookup{c.known, c.unknown} {
		if l := cached[q.name]; l != nil && time.Now().Before(l.expires) {
			if l.err == nil && time.Until(l.expires) < CallerTTL/2 {
				c.begin(ctx, q) // refreshes the result before it expires, as the database may be slow
			}
			return l
		}
	}
	return c.begin(ctx, q)
}

// begin starts a query, or joins a query under way. mu must be held.
func (c *Callers) begin(ctx context.Context, q callerQuery) *lookup {
	l := c.inFlight[q]
	if l == nil {
		l = &lookup{done: make(chan struct{}), changed: make(chan struct{})}
		c.inFlight[q] = l
		// Other calls may wait for this result too, so the query does not end with the call that started it.
		go c.run(context.WithoutCancel(ctx), q, l)
	}
	return l
}

func (c *Callers) run(ctx context.Context, q callerQuery, l *lookup) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	l.caller, l.err = c.find(ctx, q.name, q.forList)
	l.expires = time.Now().Add(CallerTTL)
	if l.err != nil {
		l.expires = time.Now().Add(unknownCallerTTL)
	}

	c.mu.Lock()
	current := c.inFlight[q] == l
	if current {
		delete(c.inFlight, q)
	}
	switch {
	case !current: // Forget was called during the query: the result may be outdated
		close(l.changed)
	case l.err == nil:
		drop(c.unknown, q.name)
		if old := c.known[q.name]; old != nil && reflect.DeepEqual(old.caller, l.caller) {
			l.changed = old.changed
			delete(c.known, q.name) // without closing changed
		}
		remember(c.known, q.name, l)
	case task.CodeOf(l.err) == task.CodeNotFound:
		drop(c.known, q.name)
		remember(c.unknown, q.name, l)
	}
	c.mu.Unlock()
	close(l.done)
	if l.err == nil && c.onFound != nil {
		c.onFound()
	}
}

// Forget makes the next call with the name query the database.
func (c *Callers) Forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(name)
	drop(c.unknown, name)
	delete(c.inFlight, callerQuery{name, false})
	delete(c.inFlight, callerQuery{name, true})
}

// ForgetAll is Forget for all names. Call ForgetAll after NATS was away: any caller may have changed.
func (c *Callers) ForgetAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range maps.Clone(c.known) {
		c.expire(name)
	}
	for name := range maps.Clone(c.unknown) {
		drop(c.unknown, name)
	}
	clear(c.inFlight)
}

// expire makes the result of a name expire and closes its channel changed. The caller stays in known, for seen. mu must
// be held.
func (c *Callers) expire(name string) {
	if l := c.known[name]; l != nil {
		drop(c.known, name)
		c.known[name] = &lookup{caller: l.caller, changed: make(chan struct{})}
	}
}

// drop removes the result of a name and closes its channel changed.
func drop(names map[string]*lookup, name string) {
	if l := names[name]; l != nil {
		close(l.changed)
		delete(names, name)
	}
}

// remember adds a result. At the limit, remember first drops the expired results, and then any others if there is still
// no room. The next call with a dropped name queries the database.
func remember(names map[string]*lookup, name string, l *lookup) {
	if len(names) >= callerLimit {
		now := time.Now()
		for other, old := range names {
			if now.After(old.expires) {
				drop(names, other)
			}
		}
	}
	for other := range names {
		if len(names) < callerLimit {
			break
		}
		drop(names, other)
	}
	drop(names, name)
	names[name] = l
}
