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

// AlertKind is what is wrong with a queue or a stream.
type AlertKind string

// The kinds of alert.
const (
	AlertFailureRate AlertKind = "failure_rate" // too many recently finished tasks failed
	AlertBacklog     AlertKind = "backlog"      // too many tasks wait for a sender
	AlertStreamFull  AlertKind = "stream_full"  // a stream is nearly full
)

// NoConsent is WeChat's error code for a user who has not allowed the message. It does not count as a
// failure.
const NoConsent = "43101"

// AlreadySent is the error code of a task whose subscribe message was sent by another task. It does not
// count as a failure.
const AlreadySent = "ALREADY_SENT"

// Alert is a queue or stream with a value that is, or was, over its threshold.
type Alert struct {
	Kind      AlertKind
	Queue     string  // for AlertStreamFull the stream
	Value     float64 // a ratio from 0 to 1, or a number of tasks
	Threshold float64
}

// Limits are thresholds by queue. "*" is for all queues without their own; 0 or missing means no
// threshold.
type Limits map[string]float64

// limitsRule is what Decode accepts.
const limitsRule = `must be one number, or numbers by queue as "wechat=0.1;*=0.2", where * is every other queue and 0 is off`

// Decode parses a setting such as "0.2" or "wechat=0.1;*=0.2". An empty one sets no threshold.
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
		case queue != otherQueues && !ValidQueue(queue):
			return fmt.Errorf("%s; %q has no valid queue name", limitsRule, part)
		case twice:
			return fmt.Errorf("%s; %q is set twice", limitsRule, queue)
		case err != nil || limit < 0 || math.IsNaN(limit) || math.IsInf(limit, 0):
			return fmt.Errorf("%s; %q is not a number of at least 0", limitsRule, part)
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

// On reports whether any queue has a threshold.
func (l Limits) On() bool {
	for _, limit := range l {
		if limit > 0 {
			return true
		}
	}
	return false
}

// AlertRules are the thresholds for alerts.
type AlertRules struct {
	FailureRate Limits        // ratio of tasks that finished within the window; each less than 1
	MinFinished int           // with fewer results within the window, no failure rate alert is raised
	Window      time.Duration // how far back results count
	Backlog     Limits        // number of pending tasks
	StreamFull  float64       // used part of a stream's bytes, less than 1; 0 = off
}

// On reports whether any queue has a threshold.
func (r AlertRules) On() bool { return r.FailureRate.On() || r.Backlog.On() }

// maxAlertInterval is the longest time between two checks.
const maxAlertInterval = 30 * time.Second

// CheckInterval is a tenth of the window, within bounds.
func (r AlertRules) CheckInterval() time.Duration {
	return max(min(r.Window/10, maxAlertInterval), time.Second)
}

// QueueLoad is what alerts are decided from for one queue.
type QueueLoad struct {
	Pending  int64 // waiting for a sender now
	Finished int64 // within the window, without failures that do not count (see Task.FailureCounts)
	Failed   int64 // of the finished
}

// value returns what the threshold of kind is compared with.
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

// clearRatio is the part of a threshold below which an alert clears, so that a value near the
// threshold raises one alert.
const clearRatio = 0.8

// CheckQueues returns the alerts to raise, and the open ones to clear with their values. Fewer than
// MinFinished results raise no alert, but may clear one: an alert ends when its window is empty.
func (r AlertRules) CheckQueues(queues map[string]QueueLoad, open []Alert) (raised, cleared []Alert) {
	type incident struct {
		kind  AlertKind
		queue string
	}
	known := map[incident]bool{}
	for _, a := range open {
		known[incident{a.Kind, a.Queue}] = true
		limit := r.limit(a.Kind, a.Queue)
		a.Value = queues[a.Queue].value(a.Kind)
		if limit == 0 || a.Value <= limit*clearRatio {
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

// streamClearMargin is how far below its threshold a stream's alert clears; clearRatio applies instead
// if it is reached first.
const streamClearMargin = 0.1

// CheckStreams is CheckQueues for streams. used is the used part of each stream's bytes. A stream that is
// missing in used keeps its alert, since its state is unknown.
func (r AlertRules) CheckStreams(used map[string]float64, open []Alert) (raised, cleared []Alert) {
	isOpen := map[string]bool{}
	for _, a := range open {
		isOpen[a.Queue] = true
		value, known := used[a.Queue]
		a.Value = value
		if r.StreamFull == 0 || known && value <= max(r.StreamFull-streamClearMargin, r.StreamFull*clearRatio) {
			cleared = append(cleared, a)
		}
	}
	for _, stream := range slices.Sorted(maps.Keys(used)) {
		if value := used[stream]; r.StreamFull > 0 && value > r.StreamFull && !isOpen[stream] {
			raised = append(raised, Alert{Kind: AlertStreamFull, Queue: stream, Value: value, Threshold: r.StreamFull})
		}
	}
	return raised, cleared
}

// FailureCounts reports whether the failure rate counts the task as failed. Tasks that were cancelled
// or expired, or failed with NoConsent or AlreadySent, do not count.
func (t Task) FailureCounts() bool {
	return t.State == Failed && t.Reason != Cancelled && t.Reason != Expired && t.ErrorCode != NoConsent && t.ErrorCode != AlreadySent
}
