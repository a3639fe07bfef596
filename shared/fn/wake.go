package fn

import (
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/message"
)

// WakeSweepAt wakes sweep at a time; the zero time = never. A wake-up may be lost: then a claim, or sweep at its next
// safety tick (SENDONCE_SAFETY_TICK), finds what is due.
func (e *Env) WakeSweepAt(at time.Time) {
	if !at.IsZero() {
		e.bus.WakeAt(bus.WakeSweep, at)
	}
}

// WakeAgainAt wakes the event function of a subject at a time; the zero time = never. Unlike
// WakeSweepAt, WakeAgainAt schedules a wake-up even if there was a wake-up for the same time: if the
// clock of NATS is ahead, that wake-up may have come too early.
func (e *Env) WakeAgainAt(subject string, at time.Time) {
	if !at.IsZero() {
		e.bus.WakeAgainAt(subject, at)
	}
}

// NotBefore returns the later of at and now plus delay, or zero for a zero at. NotBefore is for the next
// query after a query has skipped due rows, because another process has locked them. A query at once
// would skip these rows again.
func NotBefore(at time.Time, delay time.Duration) time.Time {
	if earliest := time.Now().Add(delay); !at.IsZero() && at.Before(earliest) {
		return earliest
	}
	return at
}

// WakeRelayAt wakes relay at a time; the zero time = now. As with WakeSweepAt, the wake-up may be lost.
func (e *Env) WakeRelayAt(at time.Time) { e.bus.WakeAt(bus.WakeRelay, at) }

// WakeDeliverAt is WakeRelayAt for deliver, which sends webhooks and messages to URLs.
func (e *Env) WakeDeliverAt(at time.Time) { e.bus.WakeAt(bus.WakeDeliver, at) }

// WakeSaveAt is WakeRelayAt for save, which makes room in the stream of accepted messages.
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
