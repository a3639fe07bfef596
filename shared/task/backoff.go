package task

import (
	"fmt"
	"strings"
	"time"
)

// Backoff is the delay of each retry by queue: the nth value for the nth retry, the last one for all
// further ones. "*" is for all queues without their own; without either, retries are immediate, as in
// the original SMS API. There is no jitter, because senders claim at different times anyway.
type Backoff map[string][]time.Duration

const (
	otherQueues = "*"
	maxWait     = 7 * 24 * time.Hour
)

// backoffRule describes what Decode accepts.
const backoffRule = `must say how long the retries of each queue wait, as "wechat=5s,30s,2m,10m;*=0", where * is every other queue`

// Decode parses a setting such as "wechat=5s,30s,2m,10m;*=0". An empty one means immediate retries.
func (b *Backoff) Decode(text string) error {
	all := Backoff{}
	for part := range strings.SplitSeq(text, ";") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		queue, list, ok := strings.Cut(part, "=")
		queue = strings.TrimSpace(queue)
		switch _, twice := all[queue]; {
		case !ok || queue != otherQueues && !ValidQueue(queue):
			return fmt.Errorf("%s; %q has no valid queue name", backoffRule, part)
		case twice:
			return fmt.Errorf("%s; %q is set twice", backoffRule, queue)
		}
		waits, err := parseWaits(list)
		if err != nil {
			return err
		}
		all[queue] = waits
	}
	*b = all
	return nil
}

func parseWaits(list string) ([]time.Duration, error) {
	parts := strings.Split(list, ",")
	if len(parts) > MaxRetriesCap {
		return nil, fmt.Errorf("%s; a task has at most %d retries, so %q is too long", backoffRule, MaxRetriesCap, list)
	}
	waits := make([]time.Duration, len(parts))
	for i, part := range parts {
		wait, err := time.ParseDuration(strings.TrimSpace(part))
		if err != nil || wait < 0 || wait > maxWait {
			return nil, fmt.Errorf("%s; %q is not a time from 0 to 168h", backoffRule, part)
		}
		waits[i] = wait
	}
	return waits, nil
}

// wait returns the delay of the nth retry of a task of the queue; n begins at 1.
func (b Backoff) wait(queue string, n int16) time.Duration {
	waits, own := b[queue]
	if !own {
		waits = b[otherQueues]
	}
	if len(waits) == 0 {
		return 0
	}
	return waits[min(max(int(n), 1), len(waits))-1]
}
