package auth

import (
	"context"
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// Failed logins are limited per name and address, per address, and in total:
//
//   - A name at an address has pairBurst wrong passwords and one more every
//     pairEvery. Beyond them no password is checked there: 429. The same wrong
//     password again is no guess and costs nothing, so that an app which retries it
//     forever does not shut out others with that name behind its address.
//   - An address has addressBurst failures and addressRate more each second, and so
//     have all addresses together. Beyond them a failure is answered 429 instead of
//     401, and a name that this process has not seen is not looked up for the call but
//     with all such names every deferredLookupInterval: its caller gets in when it comes again.
//     A call waits failureTime at most for the lookup of a name that was seen.
//
// A right password is refused only by the first rule, and not even by that where it
// was right within the last hour: at that address, and if it is long enough that
// nobody guesses it. So nobody can lock out a caller at another address.
//
// A failure says nothing about whether the name exists: it counts alike, looked up or not, and
// its answer takes failureTime, and the time of a hash where the admin's password is given
// by one. Names that no caller can have are refused as missing credentials are.
const (
	pairBurst    = 10
	pairEvery    = 6 * time.Second
	addressBurst = 300
	addressRate  = 5 // a second
	totalBurst   = 1000
	totalRate    = 20 // a second

	failureTime       = 50 * time.Millisecond
	successTTL        = time.Hour
	minStrongPassword = 12 // bytes of a password

	// What is kept: at most a few MB, whatever anybody sends.
	pairLimit    = 8192
	addressLimit = 4096
	successLimit = 8192
)

// limiter counts the failed attempts to authenticate.
type limiter struct {
	seed maphash.Seed

	addressBurst, totalBurst float64

	mu        sync.Mutex
	pairs     map[pair]*pairFailures
	addresses map[netip.Prefix]*leakyBucket
	total     leakyBucket
	succeeded map[proof]time.Time  // until when they count
	existing  map[uint64]time.Time // names of callers, until when they are looked up for calls from any address
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

// pairFailures is what failed lately for a pair.
type pairFailures struct {
	bucket leakyBucket
	wrong  [4]uint64 // the last passwords
	next   int       // of wrong, to be replaced
}

// leakyBucket is what may still fail. It grows back with time.
type leakyBucket struct {
	used float64
	at   time.Time // when used was so
}

func (a *leakyBucket) level(at time.Time, perSecond float64) float64 {
	a.used = max(0, a.used-at.Sub(a.at).Seconds()*perSecond)
	a.at = at
	return a.used
}

// attempt is one call's try to authenticate.
type attempt struct {
	limiter *limiter
	proof
	known    bool // that there is a caller of the name
	proven   bool // the password was right here lately
	repeated bool // the password was wrong here lately
	spent    bool // with one of the address's failures; if not, the failure is answered 429
	began    time.Time
	hashing  time.Duration // time that the admin's hash took, for any name
}

func newLimiter() *limiter {
	return &limiter{
		seed:         maphash.MakeSeed(),
		addressBurst: addressBurst, totalBurst: totalBurst,
		pairs:     map[pair]*pairFailures{},
		addresses: map[netip.Prefix]*leakyBucket{},
		succeeded: map[proof]time.Time{},
		existing:  map[uint64]time.Time{},
	}
}

func tooManyAttempts(after time.Duration) *task.Error {
	return &task.Error{Code: CodeTooManyAttempts, Message: "too many failed attempts to authenticate; come back after Retry-After", RetryAfter: after}
}

// begin returns an error if no password may be checked. Otherwise end must follow.
func (l *limiter) begin(login Login) (*attempt, error) {
	a := &attempt{limiter: l, began: login.Began, proof: proof{
		pair: pair{maphash.String(l.seed, login.Name), login.Address}, password: maphash.String(l.seed, login.Password),
	}}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	a.known = now.Before(l.existing[a.name])
	a.proven = now.Before(l.succeeded[a.proof])
	if f := l.pairs[a.pair]; f != nil {
		a.repeated = slices.Contains(f.wrong[:], a.password)
		over := f.bucket.level(now, 1/pairEvery.Seconds()) + 1 - pairBurst
		if over > 0 && !(a.proven && len(login.Password) >= minStrongPassword) {
			return nil, tooManyAttempts(time.Duration(over * float64(pairEvery)))
		}
	}
	a.spent = l.spend(a.address, now)
	return a, nil
}

// spend takes one of the failures that the address, and all together, have; mu is
// held.
func (l *limiter) spend(address netip.Prefix, now time.Time) bool {
	own := l.addresses[address]
	if own == nil {
		own = &leakyBucket{at: now}
		makeRoom(l.addresses, addressLimit, func(old *leakyBucket) float64 { return old.level(now, addressRate) })
		l.addresses[address] = own
	}
	if own.level(now, addressRate)+1 > l.addressBurst || l.total.level(now, totalRate)+1 > l.totalBurst {
		return false
	}
	own.used++
	l.total.used++
	return true
}

// end counts how the attempt went and returns its error.
func (a *attempt) end(ctx context.Context, err error) error {
	a.limiter.mu.Lock()
	switch {
	case err == nil:
		a.refund()
		a.succeeded()
	case task.CodeOf(err) == CodeUnauthenticated:
		err = a.failed(err)
	default:
		a.refund()
	}
	a.limiter.mu.Unlock()
	if code := task.CodeOf(err); code == CodeUnauthenticated || code == CodeTooManyAttempts {
		a.delay(ctx)
	}
	return err
}

// succeeded notes that the password is right; mu is held.
func (a *attempt) succeeded() {
	l, now := a.limiter, time.Now()
	if until := l.succeeded[a.proof]; until.Sub(now) > successTTL/2 {
		return
	}
	makeRoom(l.succeeded, successLimit, timeLeft(now))
	l.succeeded[a.proof] = now.Add(successTTL)
	l.rememberName(a.name, now)
}

// rememberName notes that there is a caller; mu is held.
func (l *limiter) rememberName(name uint64, now time.Time) {
	makeRoom(l.existing, successLimit, timeLeft(now))
	l.existing[name] = now.Add(successTTL)
}

// nameFound is rememberName for names that deferredLookups has found.
func (l *limiter) nameFound(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rememberName(maphash.String(l.seed, name), time.Now())
}

// refund returns what was paid for an attempt that has not failed; mu is held.
func (a *attempt) refund() {
	if !a.spent {
		return
	}
	l := a.limiter
	if own := l.addresses[a.address]; own != nil {
		own.used = max(0, own.used-1)
	}
	l.total.used = max(0, l.total.used-1)
}

// failed counts a wrong password, or a name that nobody has; mu is held.
func (a *attempt) failed(err error) error {
	l, now := a.limiter, time.Now()
	f := l.pairs[a.pair]
	if f == nil {
		f = &pairFailures{bucket: leakyBucket{at: now}}
		makeRoom(l.pairs, pairLimit, func(old *pairFailures) float64 { return old.bucket.level(now, 1/pairEvery.Seconds()) })
		l.pairs[a.pair] = f
	}
	if !slices.Contains(f.wrong[:], a.password) {
		f.bucket.used = f.bucket.level(now, 1/pairEvery.Seconds()) + 1
		f.wrong[f.next] = a.password
		f.next = (f.next + 1) % len(f.wrong)
	}
	if !a.spent {
		return tooManyAttempts(time.Second)
	}
	return err
}

// delay makes the answer to a failure take as long as any other's.
func (a *attempt) delay(ctx context.Context) {
	select {
	case <-time.After(time.Until(a.began.Add(failureTime + a.hashing))):
	case <-ctx.Done():
	}
}

// timeLeft is the level of makeRoom for entries that are kept until a time.
func timeLeft(now time.Time) func(until time.Time) float64 {
	return func(until time.Time) float64 { return until.Sub(now).Seconds() }
}

// makeRoom makes room for one more in a table of a limited size: it drops the entries without a
// level, and a sixteenth of the table in any case, those of the lowest level.
func makeRoom[K comparable, V any](table map[K]V, limit int, level func(V) float64) {
	if len(table) < limit {
		return
	}
	levels := make([]float64, 0, len(table))
	for _, v := range table {
		levels = append(levels, level(v))
	}
	slices.Sort(levels)
	low := levels[len(levels)/16]
	for k, v := range table {
		if l := level(v); l <= 0 || l <= low && len(table) >= limit*15/16 {
			delete(table, k)
		}
	}
}
