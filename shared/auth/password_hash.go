package auth

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// The limits of passwords that are given as a hash.
const (
	HashIterations    = 600_000 // OWASP's advice for PBKDF2 with SHA-256
	MinHashIterations = 1_000   // enough for a long random password
	MaxHashIterations = 10_000_000
	MaxPasswordLength = 1024 // bytes
)

// A password hash has the form of Django: pbkdf2_sha256$<iterations>$<salt>$<hash in base64>.
const (
	hashAlgorithm = "pbkdf2_sha256"
	hashRule      = "must be what `sendonce hash-password` prints: " + hashAlgorithm + "$<1000 to 10000000 iterations>$<salt>$<32 bytes in base64>"
	passwordWait  = 2 * time.Second // the longest wait of a call for its turn
	turnLength    = 5               // a turn takes 5 times as long as computing a hash
	firstTurnTTL  = time.Hour       // an address gets one first turn for a name in this time
	turnLimit     = 32768           // entries of each of the tables free and firsts, which then have at most 2 MB

	// Headers of waiting calls are in no memory budget: at most 18 KB for each call, 19 MB in all.
	waitingAddresses  = 512 // addresses with at least one waiting call
	waitingMore       = 512 // waiting calls of all addresses, not counting one call of each address
	waitingPerAddress = 32
)

// PasswordHash checks the built-in admin's password against a hash.
//
// Computing a hash takes a tenth of a second or more. A process remembers the right password after its first
// use. Before that, computations start in turns, with pauses. Each name has two queues of turns: one for the
// first password that an address tries for the name within firstTurnTTL, and one for all other passwords. So
// an address delays the admin's first call from another address by at most one turn, and guessing uses at
// most two fifths of a core.
//
// The number of waiting calls is limited, for each address and in all. While calls of fewer than
// waitingAddresses addresses wait, the first call of a further address may always wait too.
//
// Hashes are computed only for the admin's name. Calls with other names have their own queues, and take as long as a
// computation does, so that the time of a response does not show which name is the admin's.
type PasswordHash struct {
	iterations int
	salt, sum  []byte
	derive     func(password string, iterations int) ([]byte, error)

	matched  atomic.Pointer[[sha256.Size]byte] // SHA-256 of the right password; nil before its first use
	accepted chan struct{}                     // closed when matched is set

	mu        sync.Mutex
	slowest   time.Duration        // the longest time that computing a hash took, at first an estimate
	free      map[uint64]time.Time // by queue: when the next turn of the queue begins, if that is in the future
	firsts    map[uint64]time.Time // by name and address: until when there is no further first turn
	waiting   int                  // calls that wait for a turn or use one
	byAddress map[netip.Prefix]int // waiting, by address; an address without such calls has no entry
}

// ParsePasswordHash reads a result of HashPassword. The error says what is accepted.
func ParsePasswordHash(text string) (*PasswordHash, error) {
	parts := strings.Split(text, "$")
	if len(parts) != 4 || parts[0] != hashAlgorithm || parts[2] == "" {
		return nil, errors.New(hashRule)
	}
	iterations, err := strconv.Atoi(parts[1])
	sum, notBase64 := base64.StdEncoding.DecodeString(parts[3])
	if err != nil || notBase64 != nil || iterations < MinHashIterations || iterations > MaxHashIterations || len(sum) != sha256.Size {
		return nil, errors.New(hashRule)
	}
	h := &PasswordHash{
		iterations: iterations, salt: []byte(parts[2]), sum: sum, accepted: make(chan struct{}),
		free: map[uint64]time.Time{}, firsts: map[uint64]time.Time{}, byAddress: map[netip.Prefix]int{},
	}
	h.derive = func(password string, iterations int) ([]byte, error) {
		return pbkdf2.Key(sha256.New, password, h.salt, iterations, len(h.sum))
	}
	return h, nil
}

// matches reports whether the name is the admin's and the password is right. It takes the same time for all
// names. If the pair is over its limit, matches computes no hash. It returns an error if the call gets no
// turn within passwordWait of the beginning of the call, if too many calls wait, or if ctx ends.
func (h *PasswordHash) matches(ctx context.Context, a *attempt, password string, admin bool) (bool, error) {
	secret := sha256.Sum256([]byte(password))
	isKnown := func(known *[sha256.Size]byte) bool {
		return admin && subtle.ConstantTimeCompare(known[:], secret[:]) == 1
	}
	if known := h.matched.Load(); known != nil {
		return isKnown(known), nil
	}
	if a.retryAfter > 0 || len(password) > MaxPasswordLength {
		return false, nil
	}
	start, ok, end := h.turn(a)
	defer end()
	select {
	case <-time.After(time.Until(start)):
	case <-h.accepted:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if known := h.matched.Load(); known != nil {
		return isKnown(known), nil
	}
	if !ok {
		return false, task.Busy("too many passwords wait to be checked, try again")
	}
	began := time.Now()
	if admin {
		sum, err := h.derive(password, h.iterations)
		switch {
		case err != nil:
			return false, err
		case subtle.ConstantTimeCompare(sum, h.sum) == 1:
			if h.matched.CompareAndSwap(nil, &secret) {
				close(h.accepted)
			}
			return true, nil
		}
	}
	select {
	case <-time.After(time.Until(began.Add(h.longest(time.Since(began))))):
	case <-ctx.Done():
	}
	return false, nil
}

// longest records how long a computation took, and returns the longest time so far.
func (h *PasswordHash) longest(took time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slowest = max(h.slowest, took)
	return h.slowest
}

// turn returns when the turn of the call begins. If the call gets no turn, ok is false and start is when to refuse the
// call. The caller must call end.
func (h *PasswordHash) turn(a *attempt) (start time.Time, ok bool, end func()) {
	now, pair := time.Now(), maphash.Comparable(a.limiter.seed, a.pair)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.mayWait(a.address) {
		// Not earlier: the admin's name needs no lookup, and the time must not show that.
		return a.began.Add(failureTime), false, func() {}
	}
	h.waiting++
	h.byAddress[a.address]++
	end = func() { h.leave(a.address) }
	if h.slowest == 0 {
		h.slowest = h.estimate()
	}
	isFirst := !now.Before(h.firsts[pair])
	queue := maphash.Comparable(a.limiter.seed, struct {
		name  uint64
		first bool
	}{a.name, isFirst})
	start = now
	if free := h.free[queue]; free.After(now) {
		start = free
	}
	if limit := a.began.Add(passwordWait); start.After(limit) {
		return limit, false, end
	}
	evictIfFull(h.free, turnLimit, timeLeft(now))
	h.free[queue] = start.Add(turnLength * h.slowest)
	if isFirst {
		evictIfFull(h.firsts, turnLimit, timeLeft(now))
		h.firsts[pair] = now.Add(firstTurnTTL)
	}
	return start, true, end
}

// mayWait reports whether there is room for a waiting call of the address. mu must be held.
func (h *PasswordHash) mayWait(address netip.Prefix) bool {
	n, addresses := h.byAddress[address], len(h.byAddress)
	if n == 0 {
		return addresses < waitingAddresses
	}
	return n < waitingPerAddress && h.waiting-addresses < waitingMore
}

// leave removes a call from the waiting calls.
func (h *PasswordHash) leave(address netip.Prefix) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting--
	if h.byAddress[address]--; h.byAddress[address] == 0 {
		delete(h.byAddress, address)
	}
}

// estimate returns the time to compute a hash, measured with a fiftieth of the iterations.
func (h *PasswordHash) estimate() time.Duration {
	const part = 50
	began := time.Now()
	_, _ = h.derive("", max(h.iterations/part, 1)) // an error does not depend on the password, so matches returns the same error
	return part * time.Since(began)
}

// HashPassword returns the hash of a password with a new salt, for BASIC_AUTH_PASSWORD_HASH.
func HashPassword(password string, iterations int) (string, error) {
	salt := rand.Text()
	sum, err := pbkdf2.Key(sha256.New, password, []byte(salt), iterations, sha256.Size)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s$%d$%s$%s", hashAlgorithm, iterations, salt, base64.StdEncoding.EncodeToString(sum)), nil
}
