package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// clockSlack is what the clocks of Postgres and NATS may differ by: a wake-up
	// that comes early finds nothing due, and no other follows.
	clockSlack = 200 * time.Millisecond
	fineUntil  = time.Minute
	fine       = time.Second
	coarse     = 10 * time.Second

	scheduleTimeout  = 5 * time.Second
	scheduleMemory   = 10_000 // buckets that a process remembers
	tickInstallTries = 3
)

// ErrNoSchedules says that the server is too old to tick by itself.
var ErrNoSchedules = errors.New("this NATS has no repeating schedules, 2.14 or later has")

// bucketOf rounds up, so that one wake-up serves everything that falls due
// until then. Soon, a second is what a waiting person notices; later, ten
// seconds are little against the wait so far, and a thousand leases of ten
// minutes each second make one schedule in ten seconds.
func bucketOf(at, now time.Time) time.Time {
	size := fine
	if at.Sub(now) > fineUntil {
		size = coarse
	}
	at = at.Add(clockSlack)
	if down := at.Truncate(size); down.Before(at) {
		return down.Add(size)
	}
	return at
}

// WakeAt has NATS wake subject once at is past: up to 1.2 s later within the
// next minute, up to 10.2 s beyond. It never blocks and never fails; what cannot
// be scheduled is counted as dropped and scheduled when NATS is back. subject is one
// that the stream WAKE takes, so no queue's but that of WakeWeChat.
func (b *Bus) WakeAt(subject string, at time.Time) {
	if b == nil {
		return
	}
	now := time.Now()
	if !at.After(now) {
		b.Wake(subject, 1)
		return
	}
	bucket := bucketOf(at, now)
	name := scheduleName(subject, strconv.FormatInt(bucket.Unix(), 10))
	if b.remember(name, bucket, now) && !b.spawn(func() { b.schedule(name, subject, bucket) }) {
		b.dropped.Add(1)
	}
}

func scheduleName(subject, what string) string {
	return schedPrefix + strings.TrimPrefix(subject, wakePrefix) + "." + what
}

// remember says whether the schedule is new to this process.
func (b *Bus) remember(name string, bucket, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.scheduled[name]; known {
		return false
	}
	if len(b.scheduled) >= scheduleMemory {
		for n, at := range b.scheduled {
			if at.Before(now) {
				delete(b.scheduled, n)
			}
		}
		if len(b.scheduled) >= scheduleMemory {
			clear(b.scheduled) // publishing one again replaces it
		}
	}
	b.scheduled[name] = bucket
	return true
}

func (b *Bus) schedule(name, subject string, bucket time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), scheduleTimeout)
	defer cancel()
	l, err := b.link(ctx)
	if err == nil && !l.schedules {
		return
	}
	if err == nil {
		ctx, unbind := l.bound(ctx)
		defer unbind()
		_, err = l.js.PublishMsg(ctx, &nats.Msg{Subject: name}, jetstream.WithScheduleAt(bucket), jetstream.WithScheduleTarget(subject))
	}
	if err != nil {
		b.mu.Lock()
		delete(b.scheduled, name)
		b.mu.Unlock()
		b.miss(hint{subject, bucket})
		b.log.Debug("schedule a wake-up", "subject", subject, "error", err)
	}
}

// EnsureTick has NATS wake subject every so often (at least 1 s), for ever and
// without any process of ours. Any number of callers install one tick; one with
// another interval is replaced. ErrNoSchedules when the server cannot.
func (b *Bus) EnsureTick(ctx context.Context, subject string, every time.Duration) error {
	if b == nil {
		return nil
	}
	l, err := b.link(ctx)
	if err != nil {
		return fmt.Errorf("ensure the tick of %s: %w", subject, err)
	}
	if !l.ticks {
		return ErrNoSchedules
	}
	name := scheduleName(subject, "tick")
	for range tickInstallTries {
		if err = installTick(ctx, l.js, name, subject, every); !isWrongSequence(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("ensure the tick of %s: %w", subject, err)
	}
	return nil
}

func installTick(ctx context.Context, js jetstream.JetStream, name, subject string, every time.Duration) error {
	s, err := js.Stream(ctx, StreamWake)
	if err != nil {
		return err
	}
	var last uint64
	has, err := s.GetLastMsgForSubject(ctx, name)
	switch {
	case err == nil:
		last = has.Sequence
		if has.Header.Get(jetstream.ScheduleHeader) == "@every "+every.String() {
			return nil
		}
	case !errors.Is(err, jetstream.ErrMsgNotFound):
		return err
	}
	_, err = js.PublishMsg(ctx, &nats.Msg{Subject: name}, jetstream.WithScheduleEvery(every), jetstream.WithScheduleTarget(subject),
		jetstream.WithExpectLastSequencePerSubject(last))
	return err
}

// isWrongSequence says that another process installed the tick meanwhile.
func isWrongSequence(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}
