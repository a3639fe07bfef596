package bus

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEnsureCreatesWhatIsMissingAndIsIdempotent(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	js := broker.js()
	var copies sync.WaitGroup
	for range 4 {
		b := newBus(t, broker.server.URL())
		copies.Go(func() {
			for range 2 {
				if err := b.Ensure(within(t, soon)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	copies.Wait()
	names := map[string]bool{}
	for name := range js.StreamNames(t.Context()).Name() {
		names[name] = true
	}
	require.Equal(t, []string{StreamAccepted, StreamDeadLetters, StreamEvents, StreamMessages, StreamUsers, StreamWake}, slices.Sorted(maps.Keys(names)))
}

func TestAMismatchIsReportedAndNotOverwritten(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	js, b := broker.js(), newBus(t, broker.server.URL())
	require.NoError(t, b.Ensure(t.Context()))
	changed := broker.info(js, StreamEvents).Config
	changed.MaxAge, changed.Subjects = time.Hour, []string{"evt.>", "more.>"}
	_, err := js.UpdateStream(t.Context(), changed)
	require.NoError(t, err)

	err = b.Ensure(t.Context())
	var mismatch *MismatchError
	require.ErrorAs(t, err, &mismatch)
	require.Equal(t, []Difference{
		{Stream: "EVENTS", Field: "subjects", Has: "[evt.> more.>]", Wants: "[evt.>]"},
		{Stream: "EVENTS", Field: "max_age", Has: "1h0m0s", Wants: "0s"},
	}, mismatch.Differences)
	require.ErrorContains(t, err, "EVENTS: max_age is 1h0m0s, wanted 0s")
	require.Equal(t, time.Hour, broker.info(js, StreamEvents).Config.MaxAge)
}

func TestAStreamOfAnEarlierVersionIsGivenTheSubjectsThatAreNew(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	js, b := broker.js(), newBus(t, broker.server.URL())
	require.NoError(t, b.Ensure(t.Context()))
	earlier := broker.info(js, StreamWake).Config
	earlier.Subjects = []string{"wake.*", "sched.>"}
	_, err := js.UpdateStream(t.Context(), earlier)
	require.NoError(t, err)
	require.NoError(t, b.Ensure(t.Context()))
	require.Equal(t, []string{"wake.*", "sched.>", "wake.queue.wechat"}, broker.info(js, StreamWake).Config.Subjects)
}
