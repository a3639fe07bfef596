package task

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// AlertKind is what is wrong with a queue or a stream.
type AlertKind string

const (
	AlertFailureRate AlertKind = "failure_rate" // of the tasks that finished recently, too many failed
	AlertBacklog     AlertKind = "backlog"      // too many tasks wait for a sender
	AlertStreamFull  AlertKind = "stream_full"  // a stream is nearly full
)

// Error codes of failures that do not count for the failure rate.
const (
	NoConsent   = "43101"        // WeChat's code for a user who has not allowed the message
	AlreadySent = "ALREADY_SENT" // another task sent the subscribe message
)

// Alert is a queue or stream whose value is, or was, above its threshold.
type Alert struct {
	Kind      AlertKind
	Queue     string  // the name of the queue, or of the stream for AlertStreamFull
	Value     float64 // a ratio from 0 to 1, or a number of tasks
	Threshold float64
}

// Limits are thresholds by queue. "*" is for every queue without a threshold of its own; 0 = off.
type Limits map[string]float64

const thresholdsRule = `must be one number, or numbers by queue as "wechat=0.1;*=0.2", where * is every other queue and 0 is off`

// Decode parses a setting such as "0.2" or "wechat=0.1;*=0.2". "" sets no threshold.
func (l *Limits) Decode(text string) error {
	thresholds, err := parseByQueue(text, otherQueues, thresholdsRule, func(number string) (float64, error) {
		threshold, err := strconv.ParseFloat(number, 64)
		if err != nil || threshold < 0 || math.IsNaN(threshold) || math.IsInf(threshold, 0) {
			return 0, fmt.Errorf("%q is not a number of at least 0", number)
		}
		return threshold, nil
	})
	if err == nil {
		*l = thresholds
	}
	return err
}

// On reports whether any queue has a threshold.
func (l Limits) On() bool {
	for _, threshold := range l {
		if threshold > 0 {
			return true
		}
	}
	return false
}

// AlertRules are the thresholds for alerts.
type AlertRules struct {
	FailureRate Limits        // failed part of the tasks that finished within Window; each threshold is less than 1
	MinFinished int           // if fewer tasks finished within Window, no alert for the failure rate is raised
	Window      time.Duration // how far back results count
	Backlog     Limits        // number of pending tasks
	StreamFull  float64       // used part of a stream's bytes, less than 1; 0 = off
}

// On reports whether any queue has a threshold.
func (r AlertRules) On() bool { return r.FailureRate.On() || r.Backlog.On() }

// CheckInterval returns the time between two checks: a tenth of the window, from 1 to 30 seconds.
func (r AlertRules) CheckInterval() time.Duration {
	return max(min(r.Window/10, 30*time.Second), time.Second)
}

// QueueLoad has the numbers of one queue that are compared with the thresholds.
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

func (r AlertRules) threshold(kind AlertKind, queue string) float64 {
	if kind == AlertBacklog {
		return ofQueue(r.Backlog, queue)
	}
	return ofQueue(r.FailureRate, queue)
}

// The alert of a queue clears at 80% of its threshold, so that a value near the threshold raises only one alert.
const clearRatio = 0.8

// CheckQueues returns the alerts to raise, and the open alerts to clear, with their present values. An alert for the
// failure rate can clear with fewer results than MinFinished, also with none.
func (r AlertRules) CheckQueues(queues map[string]QueueLoad, open []Alert) (raised, cleared []Alert) {
	type key struct {
		kind  AlertKind
		queue string
	}
	isOpen := map[key]bool{}
	for _, a := range open {
		isOpen[key{a.Kind, a.Queue}] = true
		threshold := r.threshold(a.Kind, a.Queue)
		a.Value = queues[a.Queue].value(a.Kind)
		if threshold == 0 || a.Value <= threshold*clearRatio {
			cleared = append(cleared, a)
		}
	}
	for queue, load := range queues {
		for _, kind := range []AlertKind{AlertFailureRate, AlertBacklog} {
			threshold, value := r.threshold(kind, queue), load.value(kind)
			tooFew := kind == AlertFailureRate && load.Finished < int64(r.MinFinished)
			if threshold > 0 && value > threshold && !tooFew && !isOpen[key{kind, queue}] {
				raised = append(raised, Alert{Kind: kind, Queue: queue, Value: value, Threshold: threshold})
			}
		}
	}
	return raised, cleared
}

// A stream's alert clears 0.1 below its threshold, or at clearRatio of the threshold if that is higher.
const streamClearMargin = 0.1

// CheckStreams is CheckQueues for streams. used is the used part of each stream's bytes. The state of a stream that is
// not in used is unknown: its alert stays open unless StreamFull is 0.
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

// FailureCounts reports whether the failure rate counts the task as failed.
func (t Task) FailureCounts() bool {
	return t.State == Failed && t.Reason != Cancelled && t.Reason != Expired && t.ErrorCode != NoConsent && t.ErrorCode != AlreadySent
}
