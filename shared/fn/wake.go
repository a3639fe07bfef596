package fn

import (
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/message"
)

// WakeSweepAt wakes sweep at a time; the zero time = never. A wake-up may be lost: then a claim finds the due tasks,
// and sweep finds everything that is due at its next safety tick (SENDONCE_SAFETY_TICK).
func (e *Env) WakeSweepAt(at time.Time) {
	if !at.IsZero() {
		e.bus.WakeAt(bus.WakeSweep, at)
	}
}

// WakeAgainAt wakes the event function of a subject at a time; the zero time = never. Unlike
// WakeSweepAt, it publishes the schedule even if this process has just published one for the same time:
// if the clock of NATS is ahead, the wake-up of that one may have come too early.
func (e *Env) WakeAgainAt(subject string, at time.Time) {
	if !at.IsZero() {
		e.bus.WakeAgainAt(subject, at)
	}
}

// NotBefore returns at, or now plus delay if that is later; the zero time for a zero at. It is for the
// time of the next query after a query has skipped due rows that another process has locked: a query at
// once would skip these rows again.
func NotBefore(at time.Time, delay time.Duration) time.Time {
	if earliest := time.Now().Add(delay); !at.IsZero() && at.Before(earliest) {
		return earliest
	}
	return at
}

// WakeRelayAt wakes relay at a time. Unlike with WakeSweepAt, the zero time is now. The wake-up may be lost.
func (e *Env) WakeRelayAt(at time.Time) { e.bus.WakeAt(bus.WakeRelay, at) }

// WakeDeliverAt is WakeRelayAt for deliver, which sends webhooks and messages to URLs.
func (e *Env) WakeDeliverAt(at time.Time) { e.bus.WakeAt(bus.WakeDeliver, at) }

// WakeSaveAt is WakeRelayAt for save, which saves accepted messages in Postgres and so makes room in their stream.
func (e *Env) WakeSaveAt(at time.Time) { e.bus.WakeAt(bus.WakeSave, at) }

// WakeForMessage wakes the function that sends messages of the kind. Call it if a message is due now.
func (e *Env) WakeForMessage(kind message.Kind) {
	if kind == message.URL {
		e.WakeDeliverAt(time.Time{})
	} else {
		e.WakeRelayAt(time.Time{})
	}
}

// WakeWeChatAt is WakeRelayAt for wechat, which sends the tasks of the queue wechat.
func (e *Env) WakeWeChatAt(at time.Time) { e.bus.WakeAt(bus.WakeWeChat, at) }
