package task

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AlertKind says what is wrong with a queue or a stream.
type AlertKind string

// The kinds (seed 000, the last section).
const (
	AlertFailureRate AlertKind = "failure_rate" // too many of the tasks that finished lately failed
	AlertBacklog     AlertKind = "backlog"      // too many tasks wait for a sender
	AlertStreamFull  AlertKind = "stream_full"  // a stream is nearly full
)

// NoConsent is the error code of WeChat for a user who has not allowed the
// message. It is the user's choice, so it is no failure of ours or the sender's.
const NoConsent = "43101"

// AlreadySent is the error code of a send that found its subscribe message sent
// by another: it failed, and nothing went wrong.
const AlreadySent = "ALREADY_SENT"

// Alert is a queue or a stream whose value of one kind is, or was, over its
// threshold.
type Alert struct {
	Kind      AlertKind
	Queue     string  // of AlertStreamFull the stream
	Value     float64 // a part of 1, or a number of tasks
	Threshold float64
}

// Limits are thresholds by queue. What "*" has counts for every queue that is not
// there itself; 0, or nothing, is no threshold at all.
type Limits map[string]float64

// limitsRule is what Decode accepts.
const limitsRule = `must be one number, or numbers by queue as "wechat=0.1;*=0.2", where * is every other queue and 0 is off`

// Decode reads a setting such as "0.2" or "wechat=0.1;*=0.2". Nothing at all is no
// threshold.
func (l *Limits) Decode(text string) error {
	all := Limits{}
	for part := range strings.SplitSeq(text, ";") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		queue, number, named := strings.Cut(part, "=")
		if !named {
			queue, number = otherQueues, part
		}
		queue = strings.TrimSpace(queue)
		limit, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		switch _, twice := all[queue]; {
		case queue != otherQueues && !ValidName(queue, MaxQueueBytes):
			return fmt.Errorf("%s; %q names no queue", limitsRule, part)
		case twice:
			return fmt.Errorf("%s; %q is there twice", limitsRule, queue)
		case err != nil || limit < 0 || math.IsNaN(limit) || math.IsInf(limit, 0):
			return fmt.Errorf("%s; %q is no number from 0 on", limitsRule, part)
		}
		all[queue] = limit
	}
	*l = all
	return nil
}

func (l Limits) of(queue string) float64 {
	if limit, own := l[queue]; own {
		return limit
	}
	return l[otherQueues]
}

// On tells whether any queue has a threshold.
func (l Limits) On() bool {
	for _, limit := range l {
		if limit > 0 {
			return true
		}
	}
	return false
}

// AlertRules say when a queue is in a state that somebody should hear of.
type AlertRules struct {
	FailureRate Limits        // of the tasks that finished within the window; each less than 1
	MinFinished int           // fewer results than so many within the window raise nothing
	Window      time.Duration // how far back results count
	Backlog     Limits        // pending tasks
	StreamFull  float64       // the part of a stream's bytes that is used, less than 1; 0 = off
}

// On tells whether any queue has a threshold.
func (r AlertRules) On() bool { return r.FailureRate.On() || r.Backlog.On() }

// longestLook is the longest time between two looks at the queues.
const longestLook = 30 * time.Second

// Every is how often to look while there is something to see: often enough for
// the window, and never in vain for long.
func (r AlertRules) Every() time.Duration {
	return max(min(r.Window/10, longestLook), time.Second)
}

// QueueLoad is what is looked at of one queue.
type QueueLoad struct {
	Pending  int64 // waiting for a sender now
	Finished int64 // within the window, without what was cancelled or expired or has no consent
	Failed   int64 // of the finished
}

// value is what a kind's threshold is compared with.
func (l QueueLoad) value(kind AlertKind) float64 {
	switch {
	case kind == AlertBacklog:
		return float64(l.Pending)
	case l.Finished == 0:
		return 0
	default:
		return float64(l.Failed) / float64(l.Finished)
	}
}

func (r AlertRules) limit(kind AlertKind, queue string) float64 {
	if kind == AlertBacklog {
		return r.Backlog.of(queue)
	}
	return r.FailureRate.of(queue)
}

// calm is the part of a threshold at which an alert clears: one that hovers about
// the threshold is told once.
const calm = 0.8

// Judge gives the alerts to raise, and those of the open ones to clear with the
// values that clear them. Few results raise nothing but clear well: an alert ends
// when its window is empty.
func (r AlertRules) Judge(queues map[string]QueueLoad, open []Alert) (raised, cleared []Alert) {
	type incident struct {
		kind  AlertKind
		queue string
	}
	known := map[incident]bool{}
	for _, a := range open {
		known[incident{a.Kind, a.Queue}] = true
		limit := r.limit(a.Kind, a.Queue)
		a.Value = queues[a.Queue].value(a.Kind)
		if limit == 0 || a.Value <= limit*calm {
			cleared = append(cleared, a)
		}
	}
	for queue, load := range queues {
		for _, kind := range []AlertKind{AlertFailureRate, AlertBacklog} {
			limit, value := r.limit(kind, queue), load.value(kind)
			few := kind == AlertFailureRate && load.Finished < int64(r.MinFinished)
			if limit > 0 && value > limit && !few && !known[incident{kind, queue}] {
				raised = append(raised, Alert{Kind: kind, Queue: queue, Value: value, Threshold: limit})
			}
		}
	}
	return raised, cleared
}

// streamCalm is how far below its threshold a stream is when its alert clears.
const streamCalm = 0.1

// JudgeStreams is Judge for streams: used is the part of its bytes that each one
// uses. A stream that is not in used keeps its alert, as nobody knows.
func (r AlertRules) JudgeStreams(used map[string]float64, open []Alert) (raised, cleared []Alert) {
	known := map[string]bool{}
	for _, a := range open {
		known[a.Queue] = true
		value, asked := used[a.Queue]
		a.Value = value
		if r.StreamFull == 0 || asked && value <= max(r.StreamFull-streamCalm, r.StreamFull*calm) {
			cleared = append(cleared, a)
		}
	}
	for _, stream := range slices.Sorted(maps.Keys(used)) {
		if value := used[stream]; r.StreamFull > 0 && value > r.StreamFull && !known[stream] {
			raised = append(raised, Alert{Kind: AlertStreamFull, Queue: stream, Value: value, Threshold: r.StreamFull})
		}
	}
	return raised, cleared
}

// FailureCounts tells whether the task is a failure that the failure rate counts:
// not one that was withdrawn, or that nobody took in time, or without consent.
func (t Task) FailureCounts() bool {
	return t.State == Failed && t.Reason != Cancelled && t.Reason != Expired && t.ErrorCode != NoConsent && t.ErrorCode != AlreadySent
}
