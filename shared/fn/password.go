package fn

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
	passwordWait  = 2 * time.Second // how long a call waits for others whose passwords are computed
	passwordPause = 4               // after a wrong password nothing is computed for so many times as long
	addressQueues = 256             // addresses are divided among so many, by their hash
)

// passwordHash is what is kept of the built-in admin's password. The zero value
// matches no password.
type passwordHash struct {
	iterations int
	salt, sum  []byte

	matched  atomic.Pointer[[sha256.Size]byte] // SHA-256 of the password, once it was given
	computed atomic.Int64                      // how often a hash was computed
	slot     chan struct{}                     // full while a password is computed or just was, in vain
	queues   [addressQueues]chan struct{}      // full while a call from one of its addresses waits for slot
}

func parsePasswordHash(text string) (*passwordHash, error) {
	parts := strings.Split(text, "$")
	if len(parts) != 4 || parts[0] != hashAlgorithm || parts[2] == "" {
		return nil, errors.New(hashRule)
	}
	iterations, err := strconv.Atoi(parts[1])
	sum, notBase64 := base64.StdEncoding.DecodeString(parts[3])
	if err != nil || notBase64 != nil || iterations < MinHashIterations || iterations > MaxHashIterations || len(sum) != sha256.Size {
		return nil, errors.New(hashRule)
	}
	h := &passwordHash{iterations: iterations, salt: []byte(parts[2]), sum: sum, slot: make(chan struct{}, 1)}
	for i := range h.queues {
		h.queues[i] = make(chan struct{}, 1)
	}
	return h, nil
}

// matches reports whether password is the right one. Computing that takes a tenth of
// a second or more, so the right one is computed once in a process, and wrong ones one
// at a time with pauses: guessing takes at most a fifth of a core. source stands for the
// address of the call, which began at began: one address does not keep the others
// waiting. It returns an error if this call waited too long for the slot.
func (h *passwordHash) matches(ctx context.Context, password string, source uint64, began time.Time) (bool, error) {
	return h.compute(ctx, password, source, began, true)
}

// pretend does the work of matches with a wrong password, for other names than the
// admin's: the time of an answer must not show which name is the admin's.
func (h *passwordHash) pretend(ctx context.Context, password string, source uint64, began time.Time) error {
	_, err := h.compute(ctx, password, source, began, false)
	return err
}

func (h *passwordHash) compute(ctx context.Context, password string, source uint64, began time.Time, admin bool) (bool, error) {
	given := sha256.Sum256([]byte(password))
	isKnown := func(known *[sha256.Size]byte) bool {
		return admin && subtle.ConstantTimeCompare(known[:], given[:]) == 1
	}
	if known := h.matched.Load(); known != nil {
		return isKnown(known), nil
	}
	if len(password) > MaxPasswordLength {
		return false, nil
	}
	limit := time.NewTimer(time.Until(began.Add(passwordWait)))
	defer limit.Stop()
	queue := h.queues[source%addressQueues]
	for _, next := range []chan struct{}{queue, h.slot} {
		select {
		case next <- struct{}{}:
		case <-limit.C:
			return false, Busy("too many passwords wait to be checked, try again")
		case <-ctx.Done():
			return false, ctx.Err()
		}
		if next == queue {
			defer func() { <-queue }()
		}
	}
	if known := h.matched.Load(); known != nil {
		<-h.slot
		return isKnown(known), nil
	}
	start := time.Now()
	h.computed.Add(1)
	sum, err := pbkdf2.Key(sha256.New, password, h.salt, h.iterations, len(h.sum))
	if right := subtle.ConstantTimeCompare(sum, h.sum) == 1; err == nil && right && admin {
		h.matched.Store(&given)
		<-h.slot
		return true, nil
	}
	time.AfterFunc(passwordPause*time.Since(start), func() { <-h.slot })
	return false, err
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
