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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The limits of passwords that are given as a hash.
const (
	HashIterations    = 600_000 // what OWASP advises for PBKDF2 with SHA-256
	MinHashIterations = 1_000   // enough for a long random password
	MaxHashIterations = 10_000_000
	MaxPasswordLength = 1024 // bytes
)

// A password hash has the form of Django: pbkdf2_sha256$<iterations>$<salt>$<hash in base64>.
const (
	hashAlgorithm = "pbkdf2_sha256"
	hashRule      = "must be what `sendonce hash-password` prints: " + hashAlgorithm + "$<1000 to 10000000 iterations>$<salt>$<32 bytes in base64>"
	passwordWait  = 2 * time.Second // how long a call waits for its turn
	passwordPause = 5               // a turn lasts so many times as long as computing a hash
	firstTurnTTL  = time.Hour
	turnLimit     = 32768 // entries of each table, of at most 2 MB
)

// PasswordHash is what is kept of the built-in admin's password.
//
// Computing a hash takes a tenth of a second or more, so the right password is computed once
// in a process, and others in turns with pauses. Each name has two lines of turns: one for
// the first password that an address gives for it within firstTurnTTL, one for all further
// ones. So an address delays the first call of the admin from another one by one turn at
// most, and guessing takes at most two fifths of a core.
//
// Only passwords for the admin's name are computed. Calls with other names wait in lines of
// their own, and as long as a computation takes: the time of an answer does not show which
// name is the admin's.
type PasswordHash struct {
	iterations int
	salt, sum  []byte
	derive     func(password string, iterations int) ([]byte, error)

	matched  atomic.Pointer[[sha256.Size]byte] // SHA-256 of the password, once it was given
	accepted chan struct{}                     // closed then

	mu     sync.Mutex
	takes  time.Duration        // the longest time that computing a hash took
	free   map[uint64]time.Time // by line: when its next turn begins, if that is in the future
	firsts map[uint64]time.Time // by name and address: until when it has no first turn
}

// ParsePasswordHash reads what HashPassword returns. The error says what is accepted.
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
		free: map[uint64]time.Time{}, firsts: map[uint64]time.Time{},
	}
	h.derive = func(password string, iterations int) ([]byte, error) {
		return pbkdf2.Key(sha256.New, password, h.salt, iterations, len(h.sum))
	}
	return h, nil
}

// matches reports whether the name is the admin's and the password is the right one. It
// takes the same time for all names. A pair that has failed too often computes no hash. It returns an error if there was no turn for the call
// within passwordWait of its beginning.
func (h *PasswordHash) matches(ctx context.Context, a *attempt, password string, admin bool) (bool, error) {
	given := sha256.Sum256([]byte(password))
	isKnown := func(known *[sha256.Size]byte) bool {
		return admin && subtle.ConstantTimeCompare(known[:], given[:]) == 1
	}
	if known := h.matched.Load(); known != nil {
		return isKnown(known), nil
	}
	if a.retryAfter > 0 || len(password) > MaxPasswordLength {
		return false, nil
	}
	start, ok := h.turn(a)
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
		return false, busy("too many passwords wait to be checked, try again")
	}
	began := time.Now()
	if admin {
		sum, err := h.derive(password, h.iterations)
		switch {
		case err != nil:
			return false, err
		case subtle.ConstantTimeCompare(sum, h.sum) == 1:
			if h.matched.CompareAndSwap(nil, &given) {
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

// longest returns the longest time that computing a hash took, which may be the given one.
func (h *PasswordHash) longest(took time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.takes = max(h.takes, took)
	return h.takes
}

// turn returns when the call has its turn, or when it has waited long enough for one.
func (h *PasswordHash) turn(a *attempt) (start time.Time, ok bool) {
	now, pair := time.Now(), maphash.Comparable(a.limiter.seed, a.pair)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.takes == 0 {
		h.takes = h.estimate()
	}
	first := !now.Before(h.firsts[pair])
	line := maphash.Comparable(a.limiter.seed, struct {
		name  uint64
		first bool
	}{a.name, first})
	start = now
	if free := h.free[line]; free.After(now) {
		start = free
	}
	if limit := a.began.Add(passwordWait); start.After(limit) {
		return limit, false
	}
	evictIfFull(h.free, turnLimit, timeLeft(now))
	h.free[line] = start.Add(passwordPause * h.takes)
	if first {
		evictIfFull(h.firsts, turnLimit, timeLeft(now))
		h.firsts[pair] = now.Add(firstTurnTTL)
	}
	return start, true
}

// estimate measures part of a computation.
func (h *PasswordHash) estimate() time.Duration {
	const part = 50
	began := time.Now()
	_, _ = h.derive("", max(h.iterations/part, 1)) // an error is that of any password
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
