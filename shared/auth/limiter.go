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

// Failed logins are limited by three kinds of leaky buckets:
//
//   - For each name at an address: pairBurst wrong passwords, and one more every pairEvery.
//     A recent wrong password that is repeated is not counted again.
//   - For each address: addressBurst failures, and addressRate more each second.
//   - For all addresses together: totalBurst failures, and totalRate more each second.
//
// A failure over a limit gets 429 instead of 401. A valid token is accepted even then, so
// nobody can lock out a caller whose name this process has seen. Over a limit:
//
//   - A name that this process has not seen is not looked up during the call. Such names are looked
//     up together every deferredLookupInterval, so such a caller can log in when it repeats the call after the
//     Retry-After of the response.
//   - If the name was seen, its cached caller has expired, and the password is not that caller's token, the call waits
//     at most failureTime for the lookup.
//   - The built-in admin may have a password that can be guessed. Over the limit of a name at an
//     address, a password shorter than strongPassword is refused unchecked, and no password hash is
//     computed.
//
// The response to a failure does not show whether the name exists: all failures are counted in the same way and take
// equally long, at least failureTime. If the admin's password is configured as a hash, a failure may also take the time
// to compute a hash, with any name. Malformed names and missing credentials are refused at once.
const (
	pairBurst    = 10
	pairEvery    = 6 * time.Second
	addressBurst = 300
	addressRate  = 5 // per second
	totalBurst   = 1000
	totalRate    = 20 // per second

	failureTime    = 50 * time.Millisecond // the shortest time of a failure
	strongPassword = 16                    // characters

	// The sizes of the tables: together at most a few MB.
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

// pairFailures are the recent failures of a pair.
type pairFailures struct {
	bucket leakyBucket
	wrong  [4]uint64 // hashes of the last wrong passwords, a ring buffer
	next   int       // index in wrong of the oldest hash
}

// leakyBucket counts failures. The count decreases with time.
type leakyBucket struct {
	used    float64
	updated time.Time
}

// level updates the count to a time and returns it.
func (b *leakyBucket) level(at time.Time, perSecond float64) float64 {
	b.used = max(0, b.used-at.Sub(b.updated).Seconds()*perSecond)
	b.updated = at
	return b.used
}

// attempt is the state of one login in the limiter.
type attempt struct {
	limiter *limiter
	pair
	password   uint64
	retryAfter time.Duration // until the pair is below its limit; 0 = the pair is below its limit
	repeated   bool          // the password is one of the last wrong passwords of the pair
	charged    bool          // counted for the address and in total; if false, end refunds nothing, and a failure gets 429
	began      time.Time
	hashTime   time.Duration // how long PasswordHash.matches took
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
	return &task.Error{Code: CodeTooManyAttempts, Message: "too many failed attempts to authenticate; retry after the time in Retry-After", RetryAfter: after}
}

// begin starts an attempt and counts it for the address and in total as if it had failed. The caller must call end,
// which undoes that if the attempt has not failed.
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
		a.retryAfter = max(0, time.Duration(over*float64(pairEvery)))
	}
	a.charged = a.retryAfter == 0 && l.charge(a.address, now)
	return a
}

// charge counts a failure for the address and in total. It returns false, and counts nothing, over
// either limit. mu must be held.
func (l *limiter) charge(address netip.Prefix, now time.Time) bool {
	bucket := l.addresses[address]
	if bucket == nil {
		bucket = &leakyBucket{updated: now}
		evictIfFull(l.addresses, addressLimit, func(old *leakyBucket) float64 { return old.level(now, addressRate) })
		l.addresses[address] = bucket
	}
	if bucket.level(now, addressRate)+1 > l.addressBurst || l.total.level(now, totalRate)+1 > l.totalBurst {
		return false
	}
	bucket.used++
	l.total.used++
	return true
}

// end records the result of the attempt and returns the error to respond with. After a failure it
// waits, so that all failures take the same time.
func (a *attempt) end(ctx context.Context, err error) error {
	a.limiter.mu.Lock()
	if task.CodeOf(err) == CodeUnauthenticated {
		err = a.recordFailure(err)
	} else {
		a.refund()
	}
	a.limiter.mu.Unlock()
	if code := task.CodeOf(err); code == CodeUnauthenticated || code == CodeTooManyAttempts {
		a.delay(ctx)
	}
	return err
}

// refund undoes charge. mu must be held.
func (a *attempt) refund() {
	if !a.charged {
		return
	}
	l := a.limiter
	if bucket := l.addresses[a.address]; bucket != nil {
		bucket.used = max(0, bucket.used-1)
	}
	l.total.used = max(0, l.total.used-1)
}

// recordFailure counts the failure for the pair, unless the pair is over its limit or the password is repeated. It
// returns err, or a 429 error over a limit. mu must be held.
func (a *attempt) recordFailure(err error) error {
	if a.retryAfter > 0 {
		return tooManyAttempts(max(a.retryAfter, time.Second))
	}
	l, now := a.limiter, time.Now()
	f := l.pairs[a.pair]
	if f == nil {
		f = &pairFailures{bucket: leakyBucket{updated: now}}
		evictIfFull(l.pairs, pairLimit, func(old *pairFailures) float64 { return old.bucket.level(now, 1/pairEvery.Seconds()) })
		l.pairs[a.pair] = f
	}
	if !slices.Contains(f.wrong[:], a.password) {
		f.bucket.used = f.bucket.level(now, 1/pairEvery.Seconds()) + 1
		f.wrong[f.next] = a.password
		f.next = (f.next + 1) % len(f.wrong)
	}
	if !a.charged {
		return tooManyAttempts(time.Second)
	}
	return err
}

// delay waits until the attempt has taken failureTime and hashTime, or ctx ends.
func (a *attempt) delay(ctx context.Context) {
	select {
	case <-time.After(time.Until(a.began.Add(failureTime + a.hashTime))):
	case <-ctx.Done():
	}
}

// timeLeft returns the level function of evictIfFull for a table whose values are expiry times.
func timeLeft(now time.Time) func(until time.Time) float64 {
	return func(until time.Time) float64 { return until.Sub(now).Seconds() }
}

// evictIfFull makes room in a table that has reached its limit. It deletes the entries with the
// lowest level: all with level 0 or less, and at least a sixteenth of the table.
func evictIfFull[K comparable, V any](table map[K]V, limit int, level func(V) float64) {
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
