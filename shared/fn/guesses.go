package fn

import (
	"context"
	"hash/maphash"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// How guessing is slowed. A wrong password costs what it was tried with:
//
//   - A name at an address has pairBurst wrong passwords and one more every
//     pairEvery. Beyond them no password is checked there: 429. The same wrong
//     password again is no guess and costs nothing, so that an app which retries it
//     forever does not shut out others with that name behind its address.
//   - An address has addressBurst failures and addressRate more each second, and so
//     have all addresses together. Beyond them a failure is answered 429 instead of
//     401, and a name that this process has not seen is not looked up for the call but
//     with all such names once a second: its caller gets in when it comes again.
//
// A right password is refused only by the first rule, and not even by that where it
// was right within the last hour: at that address, and if it is long enough that
// nobody guesses it. So nobody can lock out a caller at another address.
//
// A failure says nothing about whether the name exists: it counts alike, and its
// answer takes failureTime, and the time of a hash where the admin's password is given
// by one.
const (
	pairBurst    = 10
	pairEvery    = 6 * time.Second
	addressBurst = 300
	addressRate  = 5 // a second
	totalBurst   = 1000
	totalRate    = 20 // a second

	failureTime   = 50 * time.Millisecond
	failuresHeld  = 256 // answers that wait for that; further ones do not wait
	provenFor     = time.Hour
	longEnough    = 12 // bytes of a password
	newcomersEach = time.Second

	// What is kept: at most a few MB, whatever anybody sends.
	pairLimit     = 8192
	addressLimit  = 4096
	provenLimit   = 8192
	newcomerLimit = 1024
)

// guesses counts the failed attempts to authenticate.
type guesses struct {
	seed maphash.Seed
	held chan struct{} // has one for each answer that waits

	addressBurst, totalBurst float64

	mu        sync.Mutex
	pairs     map[pair]*failures
	addresses map[netip.Prefix]*allowance
	total     allowance
	proven    map[proof]time.Time  // until when
	names     map[uint64]time.Time // of callers that exist, until when they are asked for freely
}

// pair is a name at an address.
type pair struct {
	name    uint64
	address netip.Prefix
}

// proof is a password that was right.
type proof struct {
	pair
	password uint64
}

// failures is what failed lately for a pair.
type failures struct {
	left  allowance
	wrong [4]uint64 // the last passwords
	next  int       // of wrong, to be replaced
}

// allowance is what may still fail. It grows back with time.
type allowance struct {
	used float64
	at   time.Time // when used was so
}

func (a *allowance) now(at time.Time, perSecond float64) float64 {
	a.used = max(0, a.used-at.Sub(a.at).Seconds()*perSecond)
	a.at = at
	return a.used
}

// loginAttempt is one call's try to authenticate.
type loginAttempt struct {
	guesses *guesses
	proof
	known    bool // that there is a caller of the name
	long     bool // the password
	repeated bool // the password was wrong here lately
	paid     bool // with one of the address's failures
	began    time.Time
	hashing  time.Duration // time that the admin's hash took, for any name
}

// source stands for the address.
func (a *loginAttempt) source() uint64 { return maphash.Comparable(a.guesses.seed, a.address) }

func newGuesses() *guesses {
	return &guesses{
		seed:         maphash.MakeSeed(),
		addressBurst: addressBurst, totalBurst: totalBurst,
		held:      make(chan struct{}, failuresHeld),
		pairs:     map[pair]*failures{},
		addresses: map[netip.Prefix]*allowance{},
		proven:    map[proof]time.Time{},
		names:     map[uint64]time.Time{},
	}
}

func tooManyAttempts(after time.Duration) *task.Error {
	return &task.Error{Code: codeTooManyAttempts, Message: "too many failed attempts to authenticate; come back after Retry-After", RetryAfter: after}
}

// network is the address of a source, or for IPv6 its /64, which one customer has.
func network(source string) netip.Prefix {
	addr, err := netip.ParseAddr(source)
	if err != nil {
		return netip.Prefix{}
	}
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits) // the lengths are right
	return p
}

// begin says whether a password may be checked. end must follow, unless it fails.
func (g *guesses) begin(name, password, source string, began time.Time) (*loginAttempt, error) {
	a := &loginAttempt{guesses: g, long: len(password) >= longEnough, began: began, proof: proof{
		pair: pair{maphash.String(g.seed, name), network(source)}, password: maphash.String(g.seed, password),
	}}
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	a.known = now.Before(g.names[a.name])
	f := g.pairs[a.pair]
	if f == nil {
		return a, nil
	}
	a.repeated = slices.Contains(f.wrong[:], a.password)
	over := f.left.now(now, 1/pairEvery.Seconds()) + 1 - pairBurst
	if over <= 0 || a.long && now.Before(g.proven[a.proof]) {
		return a, nil
	}
	return nil, tooManyAttempts(time.Duration(over * float64(pairEvery)))
}

// mayLookUp says whether the database may be asked for a name that is not
// remembered.
func (a *loginAttempt) mayLookUp() bool {
	a.guesses.mu.Lock()
	defer a.guesses.mu.Unlock()
	return a.known || a.pay()
}

// pay takes one of the failures that the address, and all together, have; mu is
// held.
func (a *loginAttempt) pay() bool {
	if a.paid {
		return true
	}
	g, now := a.guesses, time.Now()
	own := g.addresses[a.address]
	if own == nil {
		own = &allowance{at: now}
		makeRoom(g.addresses, addressLimit, func(old *allowance) bool { return old.now(now, addressRate) == 0 })
		g.addresses[a.address] = own
	}
	if own.now(now, addressRate)+1 > g.addressBurst || g.total.now(now, totalRate)+1 > g.totalBurst {
		return false
	}
	own.used++
	g.total.used++
	a.paid = true
	return true
}

// end counts how the attempt went and gives its error.
func (a *loginAttempt) end(ctx context.Context, err error) error {
	switch {
	case err == nil:
		a.succeeded()
		return nil
	case task.CodeOf(err) == codeUnauthenticated:
		err = a.failed(err)
	case task.CodeOf(err) != codeTooManyAttempts:
		a.giveBack()
		return err
	}
	a.hold(ctx)
	return err
}

func (a *loginAttempt) succeeded() {
	a.giveBack()
	g, now := a.guesses, time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if until := g.proven[a.proof]; until.Sub(now) > provenFor/2 {
		return
	}
	makeRoom(g.proven, provenLimit, now.After)
	g.proven[a.proof] = now.Add(provenFor)
	g.exists(a.name, now)
}

// exists notes that there is a caller; mu is held.
func (g *guesses) exists(name uint64, now time.Time) {
	makeRoom(g.names, provenLimit, now.After)
	g.names[name] = now.Add(provenFor)
}

// found is exists, for newcomers.
func (g *guesses) found(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.exists(maphash.String(g.seed, name), time.Now())
}

// giveBack returns what was paid for an attempt that has not failed.
func (a *loginAttempt) giveBack() {
	if !a.paid {
		return
	}
	g := a.guesses
	g.mu.Lock()
	defer g.mu.Unlock()
	if own := g.addresses[a.address]; own != nil {
		own.used = max(0, own.used-1)
	}
	g.total.used = max(0, g.total.used-1)
	a.paid = false
}

// failed counts a wrong password, or a name that nobody has.
func (a *loginAttempt) failed(err error) error {
	g, now := a.guesses, time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.pairs[a.pair]
	if f == nil {
		f = &failures{left: allowance{at: now}}
		makeRoom(g.pairs, pairLimit, func(old *failures) bool { return old.left.now(now, 1/pairEvery.Seconds()) == 0 })
		g.pairs[a.pair] = f
	}
	if !slices.Contains(f.wrong[:], a.password) {
		f.left.used = f.left.now(now, 1/pairEvery.Seconds()) + 1
		f.wrong[f.next] = a.password
		f.next = (f.next + 1) % len(f.wrong)
	}
	if !a.pay() {
		return tooManyAttempts(time.Second)
	}
	return err
}

// hold makes the answer to a failure take as long as any other's.
func (a *loginAttempt) hold(ctx context.Context) {
	select {
	case a.guesses.held <- struct{}{}:
	default:
		return
	}
	defer func() { <-a.guesses.held }()
	select {
	case <-time.After(time.Until(a.began.Add(failureTime + a.hashing))):
	case <-ctx.Done():
	}
}

// makeRoom makes room for one more in a table of a limited size: it drops what is over, or
// else any entries.
func makeRoom[K comparable, V any](table map[K]V, limit int, over func(V) bool) {
	if len(table) < limit {
		return
	}
	for k, v := range table {
		if over(v) {
			delete(table, k)
		}
	}
	for k := range table {
		if len(table) < limit*15/16 { // not again for each that follows
			return
		}
		delete(table, k)
	}
}

// newcomers are the names that are looked up together, for calls that were not
// looked up for.
type newcomers struct {
	which func(ctx context.Context, names []string) (existing []string, err error)
	log   *slog.Logger

	mu      sync.Mutex
	names   map[string]bool
	running bool
}

// add has found called within about newcomersEach if there is a caller of that
// name. While there are too many, a name is left out: its call comes again.
func (n *newcomers) add(name string, found func(name string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.names) >= newcomerLimit {
		return
	}
	if n.names == nil {
		n.names = map[string]bool{}
	}
	n.names[name] = true
	if !n.running {
		n.running = true
		go n.run(found)
	}
}

// run looks names up until there is none. It begins with a pause, so that a flood
// of them costs one query a second.
func (n *newcomers) run(found func(name string)) {
	for {
		time.Sleep(newcomersEach)
		n.mu.Lock()
		names := slices.Collect(maps.Keys(n.names))
		n.names, n.running = nil, len(names) > 0
		n.mu.Unlock()
		if len(names) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), callerTimeout)
		existing, err := n.which(ctx, names)
		cancel()
		if err != nil {
			n.log.Warn("new callers cannot be looked up", "cause", err.Error()) // who comes again is looked up again
		}
		for _, name := range existing {
			found(name)
		}
	}
}
