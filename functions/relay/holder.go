package relay

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/loglimit"
	"github.com/sendonce/sendonce/shared/store/messages"
)

const (
	holdEvery   = 500 * time.Millisecond // between two queries
	holdTimeout = time.Second            // of one query
	maxLogged   = 20                     // callers in a log line
)

// holder knows which callers must wait because a stream is nearly full.
type holder struct {
	mu       sync.Mutex // held during a query
	last     messages.Held
	next     time.Time      // the earliest time of the next query
	failures loglimit.Limit // of the log line about a failed query
	waiting  loglimit.Limit // of the log line about held callers
}

// held returns the callers whose messages to nearly full streams wait. If there are any, it wakes deliver, which trims these
// streams. If a query fails, the last result is used.
func (h *holder) held(ctx context.Context, env *fn.Env) messages.Held {
	free := env.Bus().NearlyFull(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(free) == 0 {
		h.last = messages.Held{}
	}
	if len(free) == 0 || time.Now().Before(h.next) {
		return h.last
	}
	ctx, cancel := context.WithTimeout(ctx, holdTimeout)
	defer cancel()
	held, trimDue, err := env.Messages.Hold(ctx, free)
	h.next = time.Now().Add(holdEvery)
	if err != nil {
		if unlogged, logNow := h.failures.Next(); logNow {
			env.Log.Warn("cannot read which callers fill a stream; the last result is used", "function", "relay", "error", err, "unlogged", unlogged)
		}
		return h.last
	}
	h.last = held
	if trimDue {
		env.WakeDeliverAt(time.Time{})
	}
	if len(held.Callers) > 0 {
		if unlogged, logNow := h.waiting.Next(); logNow {
			env.Log.Warn("a stream is nearly full: messages of callers that used more of it lately than is free wait, those of other callers do not", "function", "relay",
				"streams", slices.Compact(slices.Sorted(slices.Values(held.Streams))), "callers", held.Callers[:min(len(held.Callers), maxLogged)], "unlogged", unlogged)
		}
	}
	return held
}
