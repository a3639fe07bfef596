package fn

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	callerTTL        = time.Minute
	unknownCallerTTL = 5 * time.Second // a new caller whose name was tried too early waits no longer
	callerLimit      = 4096            // per kind: known names, unknown names
	callerTimeout    = 3 * time.Second
	callerMaxName    = 100
)

// errCredentials refuses a call without valid credentials.
var errCredentials = task.Refuse(codeUnauthenticated, "valid Basic credentials are needed")

// authenticate returns the caller of the Basic credentials, and limits failed logins. A
// call for a list is one that the role of lists answers.
func (req *request) authenticate(ctx context.Context, list bool) (store.Caller, error) {
	name, password, ok := req.r.BasicAuth()
	if !ok {
		return store.Caller{}, errCredentials
	}
	a, err := req.env.logins.begin(name, password, req.call.SourceIP, req.start)
	if err != nil {
		return store.Caller{}, err
	}
	caller, err := req.env.verify(ctx, name, password, list, a)
	return caller, a.end(ctx, err)
}

// verify says whose the name and password are. The built-in admin never touches the
// database, so an operator gets in while it is away. Where the admin's password is given
// by its hash, a failure costs computing a hash, whatever the name.
func (e *Env) verify(ctx context.Context, name, password string, list bool, a *loginAttempt) (store.Caller, error) {
	if sameText(name, e.Config.Username) {
		right, err := e.isAdminPassword(ctx, password, a)
		if err != nil {
			return store.Caller{}, err
		}
		if !right {
			return store.Caller{}, errCredentials
		}
		return store.Caller{Name: name, Roles: []string{string(Admin)}}, nil
	}
	caller, err := e.verifyCaller(ctx, name, password, list, a)
	if code := task.CodeOf(err); e.adminHash != nil && !a.repeated && (code == codeUnauthenticated || code == codeTooManyAttempts) {
		start := time.Now()
		if waited := e.adminHash.pretend(ctx, password, a.addressHash(), a.began); waited != nil {
			return store.Caller{}, waited
		}
		a.hashing = time.Since(start)
	}
	return caller, err
}

// verifyCaller is check for all names but the built-in admin's.
func (e *Env) verifyCaller(ctx context.Context, name, password string, list bool, a *loginAttempt) (store.Caller, error) {
	hash := sha256.Sum256([]byte(password)) // also of names that nobody has
	if len(name) > callerMaxName || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return store.Caller{}, errCredentials
	}
	if !e.callers.has(name) && !a.mayLookUp() {
		e.deferred.add(name, e.logins.nameFound)
		return store.Caller{}, tooManyAttempts(deferredLookupInterval)
	}
	caller, err := e.callers.byName(ctx, name, list)
	switch {
	case task.CodeOf(err) == task.CodeNotFound:
		return store.Caller{}, errCredentials
	case err != nil:
		return store.Caller{}, errors.Join(Busy("the service is busy, try again"), err)
	}
	if !caller.Knows(hash) || caller.Revoked {
		return store.Caller{}, errCredentials
	}
	return caller, nil
}

func (e *Env) isAdminPassword(ctx context.Context, password string, a *loginAttempt) (bool, error) {
	switch {
	case e.adminHash == nil:
		return e.Config.Password != "" && sameText(password, e.Config.Password), nil
	case a.repeated:
		return false, nil
	}
	start := time.Now()
	right, err := e.adminHash.matches(ctx, password, a.addressHash(), a.began)
	a.hashing = time.Since(start)
	return right, err
}

// sameText compares in a time that depends neither on where the texts differ nor on how
// long they are.
func sameText(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// callerCache remembers who is behind a name for callerTTL, and that a name is
// unknown for unknownTTL. Unknown names have a bound of their own, so that guessing them
// cannot push out the real ones. Many calls with one name ask once.
type callerCache struct {
	find    findCaller
	onFound func() // a caller is remembered from now on; nil = nobody needs to know

	mu       sync.Mutex
	inFlight map[callerQuery]*lookup
	known    map[string]*lookup
	unknown  map[string]*lookup
}

// findCaller is store.DB's CallerByName.
type findCaller func(ctx context.Context, name string, list bool) (store.Caller, error)

// callerQuery is asked over one pool: a list that waits must not hold up another call.
type callerQuery struct {
	name string
	list bool
}

// lookup is one question to the database; its fields are set once done is
// closed.
type lookup struct {
	done    chan struct{}
	caller  store.Caller
	err     error
	expires time.Time
	changed chan struct{} // closed when caller is not what is remembered of the name any more
}

func newCallerCache(find findCaller) *callerCache {
	return &callerCache{
		find:     find,
		inFlight: map[callerQuery]*lookup{},
		known:    map[string]*lookup{},
		unknown:  map[string]*lookup{},
	}
}

// has says whether asking for a name costs no query.
func (c *callerCache) has(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, remembered := range []map[string]*lookup{c.known, c.unknown} {
		if l := remembered[name]; l != nil && time.Now().Before(l.expires) {
			return true
		}
	}
	return false
}

func (c *callerCache) byName(ctx context.Context, name string, list bool) (store.Caller, error) {
	l, err := c.get(ctx, callerQuery{name, list})
	return l.caller, err
}

// get waits for a lookup.
func (c *callerCache) get(ctx context.Context, q callerQuery) (*lookup, error) {
	l := c.lookup(ctx, q)
	select {
	case <-l.done:
		return l, l.err
	case <-ctx.Done():
		return &lookup{}, ctx.Err()
	}
}

// lookup finds the remembered answer, joins a question under way or asks.
func (c *callerCache) lookup(ctx context.Context, q callerQuery) *lookup {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, remembered := range []map[string]*lookup{c.known, c.unknown} {
		if l := remembered[q.name]; l != nil && time.Now().Before(l.expires) {
			if l.err == nil && time.Until(l.expires) < callerTTL/2 {
				c.begin(ctx, q) // in good time: the database may be slow to answer
			}
			return l
		}
	}
	return c.begin(ctx, q)
}

// begin asks, unless that is under way.
func (c *callerCache) begin(ctx context.Context, q callerQuery) *lookup {
	l := c.inFlight[q]
	if l == nil {
		l = &lookup{done: make(chan struct{}), changed: make(chan struct{})}
		c.inFlight[q] = l
		// Others wait for this answer too, so it outlives the call that asked.
		go c.run(context.WithoutCancel(ctx), q, l)
	}
	return l
}

func (c *callerCache) run(ctx context.Context, q callerQuery, l *lookup) {
	ctx, cancel := context.WithTimeout(ctx, callerTimeout)
	defer cancel()
	l.caller, l.err = c.find(ctx, q.name, q.list)
	l.expires = time.Now().Add(callerTTL)
	if l.err != nil {
		l.expires = time.Now().Add(unknownCallerTTL)
	}

	c.mu.Lock()
	current := c.inFlight[q] == l
	if current {
		delete(c.inFlight, q)
	}
	switch {
	case !current: // the caller was changed while we asked
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

// drop forgets a name, and says so to who waits for that.
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
