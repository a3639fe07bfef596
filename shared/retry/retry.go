// Package retry computes how long to wait before a call is repeated.
package retry

import (
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// Delay returns the wait after the nth failed try: initial after the first try, doubled after each further try, but
// never more than longest.
func Delay(initial, longest time.Duration, n int) time.Duration {
	d := initial
	for ; n > 1 && d < longest; n-- {
		d *= 2
	}
	return min(d, longest)
}

// Jitter returns d plus a random time of at most a quarter of d, so that calls that failed together are not
// repeated together.
func Jitter(d time.Duration) time.Duration { return d + rand.N(d/4+1) }

// After returns how long to wait by the header Retry-After, which has seconds or a date, but at most limit. It
// returns 0 without a valid header, or if the date has passed.
func After(h http.Header, now time.Time, limit time.Duration) time.Duration {
	value := h.Get("Retry-After")
	seconds, err := strconv.ParseUint(value, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(limit/time.Second))) * time.Second
	}
	if date, err := http.ParseTime(value); err == nil {
		return min(max(date.Sub(now), 0), limit)
	}
	return 0
}

// Seconds returns a wait in whole seconds, rounded up, for Retry-After.
func Seconds(d time.Duration) int64 { return int64(math.Ceil(max(d, 0).Seconds())) }
