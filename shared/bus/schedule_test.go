package bus

import (
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestABucketIsNeverBeforeTheDueTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct{ in, want time.Duration }{
		{300 * time.Millisecond, time.Second},
		{time.Second, 2 * time.Second},
		{59 * time.Second, 60 * time.Second},
		{61 * time.Second, 70 * time.Second},
		{70 * time.Second, 80 * time.Second},
		{10*time.Minute + 5*time.Second, 10*time.Minute + 10*time.Second},
	} {
		require.Equal(t, now.Add(c.want), bucketOf(now.Add(c.in), now), c.in)
	}
}

func TestWakeAtFiresOncePerBucket(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	js := broker.js()
	buses := []*Bus{newBus(t, broker.server.URL()), newBus(t, broker.server.URL())}
	require.NoError(t, buses[0].Ensure(t.Context()))
	due := time.Now().Truncate(time.Second).Add(1500 * time.Millisecond)
	for range 50 {
		for _, b := range buses {
			b.WakeAt(WakeSweep, due)
		}
	}
	fired := func() bool { return broker.info(js, StreamWake).State.Subjects[WakeSweep] == 1 }
	eventually(t, fired, "fired")
	require.False(t, time.Now().Before(due), "not early")
	info := broker.info(js, StreamWake)
	require.Equal(t, map[string]uint64{WakeSweep: 1}, info.State.Subjects, "the schedule is gone")
	require.LessOrEqual(t, info.State.LastSeq, uint64(3), "one publish per process, one wake-up in all")
	for _, b := range buses {
		require.Zero(t, b.Dropped())
	}
}

func TestWhatIsDueAlreadyWakesAtOnce(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	b, h := newBus(t, broker.server.URL()), listenTo(t, broker.conn(), WakeRelay)
	b.WakeAt(WakeRelay, time.Now().Add(-time.Minute))
	eventually(t, func() bool { _, total := h.sum(); return total == 1 }, "woken")
}

func TestAScheduleThatCouldNotBeMadeIsMadeByTheNextCall(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	js, b := broker.js(), newBus(t, broker.server.URL())
	due := time.Now().Add(time.Hour)
	b.WakeAt(WakeSweep, due) // there is no stream yet
	eventually(t, func() bool { return b.Dropped() == 1 }, "counted")
	require.NoError(t, b.Ensure(t.Context()))
	eventually(t, func() bool {
		b.WakeAt(WakeSweep, due)
		return broker.info(js, StreamWake).State.Msgs == 1
	}, "made")
}

func TestTheMemoryOfSchedulesIsBounded(t *testing.T) {
	t.Parallel()
	b, err := Open(Config{URL: "nats://127.0.0.1:1", Replicas: 1}, nil)
	require.NoError(t, err)
	now := time.Now()
	for i := range scheduleMemory {
		require.True(t, b.remember(scheduleName(WakeSweep, time.Duration(i).String()), now.Add(time.Duration(i-10)*time.Second), now))
	}
	require.True(t, b.remember("one more", now, now))
	require.Len(t, b.scheduled, scheduleMemory-10+1, "the past is forgotten first")
}

func TestManyCopiesInstallOneTick(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	js := broker.js()
	require.NoError(t, newBus(t, broker.server.URL()).Ensure(t.Context()))
	ensure := func(every time.Duration) {
		var copies sync.WaitGroup
		for range 4 {
			b := newBus(t, broker.server.URL())
			copies.Go(func() {
				if err := b.EnsureTick(within(t, soon), WakeSweep, every); err != nil {
					t.Error(err)
				}
			})
		}
		copies.Wait()
	}
	installed := func() (*jetstream.RawStreamMsg, uint64) {
		s, err := js.Stream(t.Context(), StreamWake)
		require.NoError(t, err)
		m, err := s.GetLastMsgForSubject(t.Context(), "sched.sweep.tick")
		require.NoError(t, err)
		return m, s.CachedInfo().State.Msgs
	}
	ensure(time.Hour)
	first, messages := installed()
	require.EqualValues(t, 1, messages)
	require.EqualValues(t, 1, first.Sequence)
	ensure(time.Hour)
	again, _ := installed()
	require.Equal(t, first.Sequence, again.Sequence, "what is right is left alone")

	ensure(time.Minute)
	other, messages := installed()
	require.EqualValues(t, 1, messages, "replaced, not added")
	require.Equal(t, "@every 1m0s", other.Header.Get("Nats-Schedule"))
	require.EqualValues(t, 2, other.Sequence, "by one of the four")
}

func TestVersionsAreCompared(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"2.12.0": true, "2.12.0-RC.1": true, "2.15.2": true, "3.0.0": true, "2.11.9": false, "2.9.10": false, "": false, "x": false} {
		require.Equal(t, want, atLeast(version, 2, 12), version)
	}
}
