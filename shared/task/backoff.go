package task

import (
	"fmt"
	"strings"
	"time"
)

// Backoff has the delays of retries by queue: the nth delay is for the nth retry, and the last delay for all further
// retries. "*" is for every queue without delays of its own. Without delays, retries are immediate, as in the original
// SMS API. There is no jitter, because senders claim at different times anyway.
type Backoff map[string][]time.Duration

const maxDelay = 7 * 24 * time.Hour

const backoffRule = `must say how long the retries of each queue wait, as "wechat=5s,30s,2m,10m;*=0", where * is every other queue`

// Decode parses a setting such as "wechat=5s,30s,2m,10m;*=0". "" means immediate retries.
func (b *Backoff) Decode(text string) error {
	delays, err := parseByQueue(text, "", backoffRule, parseDelays)
	if err == nil {
		*b = delays
	}
	return err
}

func parseDelays(list string) ([]time.Duration, error) {
	parts := strings.Split(list, ",")
	if len(parts) > MaxRetriesCap {
		return nil, fmt.Errorf("a task has at most %d retries, so %q is too long", MaxRetriesCap, list)
	}
	delays := make([]time.Duration, len(parts))
	for i, part := range parts {
		delay, err := time.ParseDuration(strings.TrimSpace(part))
		if err != nil || delay < 0 || delay > maxDelay {
			return nil, fmt.Errorf("%q is not a time from 0 to 168h", part)
		}
		delays[i] = delay
	}
	return delays, nil
}

// delay returns the delay of the nth retry of a task of the queue. n begins at 1; 0 counts as 1.
func (b Backoff) delay(queue string, n int16) time.Duration {
	delays := ofQueue(b, queue)
	if len(delays) == 0 {
		return 0
	}
	return delays[min(max(int(n), 1), len(delays))-1]
}
