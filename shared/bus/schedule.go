package bus

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// clockSkew is how much later than due a wake-up within the next hour is scheduled, in case the clock of NATS is ahead
	// of that of Postgres. If the clock is further ahead, the woken function finds nothing due and calls WakeAgainAt.
	clockSkew = 200 * time.Millisecond

	// scheduleHorizon is how far ahead wake-ups are scheduled. For a later due time no wake-up is scheduled: safety ticks
	// wake the function, which schedules a wake-up once the time is closer.
	scheduleHorizon = 31 * day
	// scheduleLimit is the largest number of schedules of one subject: the buckets of a minute, an
	// hour, a day and scheduleHorizon, and 10 that have just passed.
	scheduleLimit = 60 + 360 + 1440 + 31*24 + 10

	wakeTimeout       = 5 * time.Second // of publishing one message or schedule to WAKE
	scheduleCacheSize = 10_000          // schedules that a process remembers
	scheduleCacheTime = 5 * time.Minute // how long a published schedule is assumed to exist at most
)

// bucketOf returns the wake-up time for a due time. Due times in the same bucket share one schedule. bucketOf
// rounds a due time within an hour up. It rounds a later due time down: the woken function finds nothing due yet and
// calls WakeAgainAt, now with a smaller bucket.
func bucketOf(at, now time.Time) time.Time {
	size := time.Second
	switch ahead := at.Sub(now); {
	case ahead > day:
		return at.Truncate(time.Hour)
	case ahead > time.Hour:
		return at.Truncate(time.Minute)
	case ahead > time.Minute:
		size = 10 * time.Second
	}
	at = at.Add(clockSkew)
	if down := at.Truncate(size); down.Before(at) {
		return down.Add(size)
	}
	return at
}

// WakeAt schedules a wake-up of subject for at. If at is within the next minute, the wake-up comes up to 1.2 s
// late; within an hour, up to 10.2 s late; within a day, up to a minute early; within 31 days, up to an hour
// early. If at has passed, WakeAt calls Wake. If at is more than 31 days away, or the server has no schedules,
// WakeAt does nothing. WakeAt neither blocks nor fails: a wake-up that cannot be scheduled counts in FailedSends
// and is tried again later. WAKE must store subject, so of the subjects of queues only WakeWeChat is possible.
func (b *Bus) WakeAt(subject string, at time.Time) { b.wakeAt(subject, at, false) }

// WakeAgainAt is WakeAt for a function that was woken, after it has found its next due time. It publishes the
// schedule even if this process has just published the same schedule: if the clock of NATS is ahead, NATS may have
// removed that schedule and sent its wake-up early.
func (b *Bus) WakeAgainAt(subject string, at time.Time) { b.wakeAt(subject, at, true) }

func (b *Bus) wakeAt(subject string, at time.Time, force bool) {
	if b == nil {
		return
	}
	now := time.Now()
	switch ahead := at.Sub(now); {
	case ahead <= 0:
		b.Wake(subject, 1)
		return
	case ahead > scheduleHorizon:
		return
	}
	bucket := bucketOf(at, now)
	name := scheduleName(subject, strconv.FormatInt(bucket.Unix(), 10))
	if (b.markScheduled(name, bucket, now) || force) && !b.spawn(func() { b.schedule(name, subject, bucket) }) {
		b.failedSends.Add(1)
	}
}

func scheduleName(subject, suffix string) string {
	return schedPrefix + strings.TrimPrefix(subject, wakePrefix) + "." + suffix
}

// markScheduled records that a schedule is published now. It returns false, and records nothing, if the schedule is
// assumed to exist. A published schedule is assumed to exist for half of the time until bucket, at least a second and
// at most scheduleCacheTime. Afterwards a WakeAt publishes the schedule again, since NATS may have lost the schedule
// or sent the wake-up early.
func (b *Bus) markScheduled(name string, bucket, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if until, known := b.scheduled[name]; known && now.Before(until) {
		return false
	}
	if len(b.scheduled) >= scheduleCacheSize {
		for n, until := range b.scheduled {
			if until.Before(now) {
				delete(b.scheduled, n)
			}
		}
		if len(b.scheduled) >= scheduleCacheSize {
			clear(b.scheduled) // harmless: a schedule that is published again only replaces itself
		}
	}
	b.scheduled[name] = now.Add(max(time.Second, min(bucket.Sub(now)/2, scheduleCacheTime)))
	return true
}

func (b *Bus) schedule(name, subject string, bucket time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), wakeTimeout)
	defer cancel()
	conn, err := b.connection(ctx)
	if err == nil && !conn.hasSchedules {
		return
	}
	if err == nil {
		connCtx, unbind := conn.UntilLost(ctx)
		defer unbind()
		_, err = conn.js.PublishMsg(connCtx, &nats.Msg{Subject: name}, jetstream.WithScheduleAt(bucket), jetstream.WithScheduleTarget(subject),
			jetstream.WithExpectStream(StreamWake))
	}
	if err != nil {
		b.mu.Lock()
		delete(b.scheduled, name)
		b.mu.Unlock()
		b.keepUnsent(signal{subject: subject, at: bucket})
		b.log.Debug("cannot schedule a wake-up", "subject", subject, "error", err)
	}
}
