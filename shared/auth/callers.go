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
	CallerTTL        = time.Minute     // how long a caller is kept
	unknownCallerTTL = 5 * time.Second // a new caller whose name was tried too early waits no longer
	callerLimit      = 4096            // per kind: known names, unknown names
	lookupTimeout    = 3 * time.Second
)

// Callers keeps the caller of a name for CallerTTL, and that a name is unknown for
// unknownCallerTTL. Unknown names have a bound of their own, so that guessing them
// cannot push out the real ones. Concurrent calls with one name share one query.
type Callers struct {
	find    findCaller
	onFound func() // a caller is remembered from now on; may be nil

	mu       sync.Mutex
	inFlight map[callerQuery]*lookup
	known    map[string]*lookup // also expired ones
	unknown  map[string]*lookup
}

// findCaller is Source.ByName.
type findCaller func(ctx context.Context, name string, list bool) (callers.Caller, error)

// callerQuery uses the pool of lists or the other one: a list that waits must not delay other calls.
type callerQuery struct {
	name string
	list bool
}

// lookup is one query; its fields are set once done is closed.
type lookup struct {
	done    chan struct{}
	caller  callers.Caller
	err     error
	expires time.Time
	changed chan struct{} // closed when the cache has another caller for the name
}

func newCallers(find findCaller) *Callers {
	return &Callers{
		find:     find,
		inFlight: map[callerQuery]*lookup{},
		known:    map[string]*lookup{},
		unknown:  map[string]*lookup{},
	}
}

// seenCaller is what is kept of a name.
type seenCaller struct {
	caller callers.Caller // as it was read last, however long ago; zero where that is not known
	exists bool           // there was a caller of the name
	fresh  bool           // a lookup needs no query
}

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

// noteExisting notes that there is a caller of the name.
func (c *Callers) noteExisting(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[name] == nil {
		remember(c.known, name, &lookup{changed: make(chan struct{})})
	}
}

func (c *Callers) byName(ctx context.Context, name string, list bool) (callers.Caller, error) {
	l, err := c.get(ctx, callerQuery{name, list})
	return l.caller, err
}

// Current returns the caller of a name. changed is closed when that may have changed.
func (c *Callers) Current(ctx context.Context, name string) (caller callers.Caller, changed <-chan struct{}, err error) {
	l, err := c.get(ctx, callerQuery{name: name})
	return l.caller, l.changed, err
}

// get waits for a lookup.
func (c *Callers) get(ctx context.Context, q callerQuery) (*lookup, error) {
	l := c.lookup(ctx, q)
	select {
	case <-l.done:
		return l, l.err
	case <-ctx.Done():
		return &lookup{}, ctx.Err()
	}
}

// lookup returns the cached result, joins a query under way or starts one.
func (c *Callers) lookup(ctx context.Context, q callerQuery) *lookup {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, remembered := range []map[string]*lookup{c.known, c.unknown} {
		if l := remembered[q.name]; l != nil && time.Now().Before(l.expires) {
			if l.err == nil && time.Until(l.expires) < CallerTTL/2 {
				c.begin(ctx, q) // in good time: the database may be slow to answer
			}
			return l
		}
	}
	return c.begin(ctx, q)
}

// begin starts a query, unless one is under way.
func (c *Callers) begin(ctx context.Context, q callerQuery) *lookup {
	l := c.inFlight[q]
	if l == nil {
		l = &lookup{done: make(chan struct{}), changed: make(chan struct{})}
		c.inFlight[q] = l
		// Others wait for this result too, so it outlives the call that started it.
		go c.run(context.WithoutCancel(ctx), q, l)
	}
	return l
}

func (c *Callers) run(ctx context.Context, q callerQuery, l *lookup) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	l.caller, l.err = c.find(ctx, q.name, q.list)
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
	case !current: // the caller was changed during the query
		close(l.changed)
	case l.err == nil:
		drop(c.unknown, q.name)
		if old := c.known[q.name]; old != nil && reflect.DeepEqual(old.caller, l.caller) {
			l.changed = old.changed
			delete(c.known, q.name)
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

// Forget has a caller looked up anew.
func (c *Callers) Forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(name)
	drop(c.unknown, name)
	delete(c.inFlight, callerQuery{name, false})
	delete(c.inFlight, callerQuery{name, true})
}

// ForgetAll has every caller looked up anew: any of them may have been changed
// while NATS was away.
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

// expire ends the use of a known caller, which seen still returns; mu is held.
func (c *Callers) expire(name string) {
	if l := c.known[name]; l != nil {
		drop(c.known, name)
		c.known[name] = &lookup{caller: l.caller, changed: make(chan struct{})}
	}
}

// drop removes a name and closes changed for its watchers.
func drop(names map[string]*lookup, name string) {
	if l := names[name]; l != nil {
		close(l.changed)
		delete(names, name)
	}
}

// remember makes room by dropping what has expired, or else any entry: losing
// one costs a query.
func remember(names map[string]*lookup, name string, l *lookup) {
	if len(names) >= callerLimit {
		for other, old := range names {
			if time.Now().After(old.expires) {
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
