// Package cache keeps a value that is expensive to read, for a short time.
package cache

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// errorKeep is how long an error of Read is fresh.
const errorKeep = time.Second

// Value has the last result of Read, which is a value or an error. A value is fresh for Keep, an error for 1 s. While
// a call of Get runs Read, other calls return the last result if it became stale less than Timeout ago, so that a slow
// Read does not delay all of them; otherwise they wait for Read. The fields must not change after the first Get.
type Value[T any] struct {
	Read    func(context.Context) (T, error)
	Timeout time.Duration // of Read
	Keep    time.Duration // how long a value is fresh; 0 = 1 s

	mu   sync.Mutex // locked during Read
	last atomic.Pointer[result[T]]
}

type result[T any] struct {
	value      T
	err        error
	freshUntil time.Time
}

func (r *result[T]) isFresh() bool { return r != nil && time.Now().Before(r.freshUntil) }

// Get returns the last result of Read while it is fresh, otherwise the result of a new Read (see Value).
func (v *Value[T]) Get() (T, error) {
	if r := v.last.Load(); r.isFresh() {
		return r.value, r.err
	}
	if !v.mu.TryLock() {
		if r := v.last.Load(); r != nil && time.Since(r.freshUntil) < v.Timeout {
			return r.value, r.err
		}
		v.mu.Lock()
	}
	defer v.mu.Unlock()
	r := v.last.Load()
	if !r.isFresh() {
		r = v.read()
		v.last.Store(r)
	}
	return r.value, r.err
}

// read has a context of its own. With the context of a caller, all callers would get an error when that caller leaves.
func (v *Value[T]) read() *result[T] {
	ctx, cancel := context.WithTimeout(context.Background(), v.Timeout)
	defer cancel()
	r := &result[T]{}
	r.value, r.err = v.Read(ctx)
	keep := errorKeep
	if r.err == nil && v.Keep > 0 {
		keep = v.Keep
	}
	r.freshUntil = time.Now().Add(keep)
	return r
}
