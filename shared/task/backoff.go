package task

import (
	"fmt"
	"strings"
	"time"
)

// Backoff says how long the retries of a queue's tasks wait: the nth retry the
// nth value, and all further ones the last. What "*" has counts for every queue
// that is not there itself; without either a retry is in line at once, as seed
// 001 section 8.3 wants it. Nothing random is added: senders claim when they are
// free, which spreads the retries.
type Backoff map[string][]time.Duration

const (
	otherQueues = "*"
	maxWait     = 7 * 24 * time.Hour
)

// backoffRule is what Decode accepts.
const backoffRule = `must say how long the retries of each queue wait, as "wechat=5s,30s,2m,10m;*=0", where * is every other queue`

// Decode reads a setting such as "wechat=5s,30s,2m,10m;*=0". Nothing at all lets
// no retry wait.
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
		case !ok || queue != otherQueues && !ValidName(queue, MaxQueueBytes):
			return fmt.Errorf("%s; %q names no queue", backoffRule, part)
		case twice:
			return fmt.Errorf("%s; %q is there twice", backoffRule, queue)
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
			return nil, fmt.Errorf("%s; %q is no time from 0 to 168h", backoffRule, part)
		}
		waits[i] = wait
	}
	return waits, nil
}

// wait is how long the nth retry of a task of the queue waits; n begins at 1.
func (b Backoff) wait(queue string, n int16) time.Duration {
	waits, own := b[queue]
	if !own {
		waits = b[otherQueues]
	}
	if len(waits) == 0 {
		return 0
	}
	return waits[min(int(n), len(waits))-1]
}
