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
//     pairEvery. Beyond them a failure is answered 429 instead of 401. The same wrong
//     password again is no guess and costs nothing.
//   - An address has addressBurst failures and addressRate more each second, and so
//     have all addresses together. Beyond them a failure is answered 429, too.
//   - In both cases a name that this process has not seen is not looked up for the call but
//     with all such names every deferredLookupInterval: its caller gets in when it comes again.
//     A wrong password waits failureTime at most for the lookup of a name that was seen.
//
// So the token of a caller is always checked, since nobody guesses it, and nobody can lock out a
// caller whose name was seen. The built-in admin may have a password that can be guessed: one that is
// shorter than strongPassword is not checked beyond the first rule, and no hash is computed.
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

	failureTime    = 50 * time.Millisecond
	strongPassword = 16 // characters

	// What is kept: at most a few MB, whatever anybody sends.
	pairLimit    = 8192
	addressLimit = 4096
)

// limiter counts the failed attempts to authenticate.
type limiter struct {
	seed maphash.Seed

	addressBurst, totalBurst float64

	mu        sync.Mutex
	pairs     map[pair]*pairFailures
	addresses map[netip.Prefix]*leakyBucket
	total     leakyBucket
}

// pair is a name at an address.
type pair struct {
	name    uint64
	address netip.Prefix
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
	pair
	password uint64
	over     time.Duration // until the pair may fail again; 0 = it may
	repeated bool          // the password was wrong here lately
	spent    bool          // one of the address's failures; if not, a failure is answered 429
	began    time.Time
	hashing  time.Duration // time that the admin's hash took, for any name
}

func newLimiter() *limiter {
	return &limiter{
		seed:         maphash.MakeSeed(),
		addressBurst: addressBurst, totalBurst: totalBurst,
		pairs:     map[pair]*pairFailures{},
		addresses: map[netip.Prefix]*leakyBucket{},
	}
}

func tooManyAttempts(after time.Duration) *task.Error {
	return &task.Error{Code: CodeTooManyAttempts, Message: "too many failed attempts to authenticate; come back after Retry-After", RetryAfter: after}
}

// begin starts an attempt; end must follow.
func (l *limiter) begin(login Login) *attempt {
	a := &attempt{
		limiter: l, began: login.Began,
		pair: pair{maphash.String(l.seed, login.Name), login.Address}, password: maphash.String(l.seed, login.Password),
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.pairs[a.pair]; f != nil {
		a.repeated = slices.Contains(f.wrong[:], a.password)
		over := f.bucket.level(now, 1/pairEvery.Seconds()) + 1 - pairBurst
		a.over = max(0, time.Duration(over*float64(pairEvery)))
	}
	a.spent = a.over == 0 && l.spend(a.address, now)
	return a
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
	if task.CodeOf(err) == CodeUnauthenticated {
		err = a.failed(err)
	} else {
		a.refund()
	}
	a.limiter.mu.Unlock()
	if code := task.CodeOf(err); code == CodeUnauthenticated || code == CodeTooManyAttempts {
		a.delay(ctx)
	}
	return err
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
	if a.over > 0 {
		return tooManyAttempts(max(a.over, time.Second))
	}
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
