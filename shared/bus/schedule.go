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
	// clockSkew is what the clocks of Postgres and NATS may usually differ by. A
	// wake-up that comes earlier finds nothing due, and who is woken asks for the
	// next one (WakeAgainAt).
	clockSkew = 200 * time.Millisecond

	// A wake-up further ahead than this is not scheduled: until then the safety
	// ticks find what is due next.
	scheduleHorizon = 31 * day
	// scheduleLimit is how many schedules of one subject there can be at once: the
	// buckets of a minute, an hour, a day and scheduleHorizon, and those that just
	// passed.
	scheduleLimit = 60 + 360 + 1440 + 31*24 + 10

	scheduleTimeout   = 5 * time.Second
	scheduleCacheSize = 10_000          // buckets that a process remembers
	scheduleCacheTime = 5 * time.Minute // for which it believes that one is still there
)

// bucketOf is when to wake for what is due at a time, so that one wake-up serves
// all that falls due together. Soon, a second is what a waiting person notices;
// within an hour, ten seconds are little against the wait so far, and a thousand
// leases of ten minutes each second make one schedule in ten seconds. Both round
// up. Beyond an hour it is the begin of the minute, beyond a day that of the hour:
// who is woken then finds nothing due and asks for a closer one.
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

// WakeAt has NATS wake subject once at is past: up to 1.2 s later within the next
// minute, up to 10.2 s beyond; what is more than an hour ahead is woken up to an
// hour early too, and what is more than 31 days ahead not yet. It never blocks and
// never fails; what cannot be scheduled is counted as dropped and scheduled when
// NATS is back. subject is one that the stream WAKE takes, so no queue's but that
// of WakeWeChat.
func (b *Bus) WakeAt(subject string, at time.Time) { b.wakeAt(subject, at, false) }

// WakeAgainAt is WakeAt for whoever is woken by subject and finds the next thing
// due later. The wake-up that it answers may have been the one for that very time:
// where the clock of NATS is ahead it comes early. So this one is published even
// if this process has published the same one before.
func (b *Bus) WakeAgainAt(subject string, at time.Time) { b.wakeAt(subject, at, true) }

func (b *Bus) wakeAt(subject string, at time.Time, again bool) {
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
	if (b.shouldSchedule(name, bucket, now) || again) && !b.spawn(func() { b.schedule(name, subject, bucket) }) {
		b.dropped.Add(1)
	}
}

func scheduleName(subject, what string) string {
	return schedPrefix + strings.TrimPrefix(subject, wakePrefix) + "." + what
}

// shouldSchedule says whether to publish a schedule: it is new to this process, or so
// old that it may have been evicted, or have come early. It is trusted for half of
// the time that is left.
func (b *Bus) shouldSchedule(name string, bucket, now time.Time) bool {
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
			clear(b.scheduled) // publishing one again replaces it
		}
	}
	b.scheduled[name] = now.Add(max(time.Second, min(bucket.Sub(now)/2, scheduleCacheTime)))
	return true
}

func (b *Bus) schedule(name, subject string, bucket time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), scheduleTimeout)
	defer cancel()
	l, err := b.connection(ctx)
	if err == nil && !l.hasSchedules {
		return
	}
	if err == nil {
		ctx, unbind := l.untilLost(ctx)
		defer unbind()
		_, err = l.js.PublishMsg(ctx, &nats.Msg{Subject: name}, jetstream.WithScheduleAt(bucket), jetstream.WithScheduleTarget(subject))
	}
	if err != nil {
		b.mu.Lock()
		delete(b.scheduled, name)
		b.mu.Unlock()
		b.keepUnsent(wakeUp{subject: subject, at: bucket})
		b.log.Debug("schedule a wake-up", "subject", subject, "error", err)
	}
}
