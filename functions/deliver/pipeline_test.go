package deliver

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/fn"
)

func TestWaitingDrainKeepsItsWorkInFlight(t *testing.T) {
	t.Parallel()
	env, err := fn.NewEnv(fn.Config{DatabaseURL: "postgres://localhost:1/x"}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(env.Close)
	synctest.Test(t, func(t *testing.T) {
		d, answer := &deliverer{env: env}, make(chan struct{})
		var seen []int
		slow := pipeline[int]{
			inFlight: newInFlight[int](),
			claim: func(_ context.Context, inFlight []int) ([]int, error) {
				seen = append(seen, len(inFlight))
				return make([]int, places.Caller-len(inFlight)), nil
			},
			post:   func(context.Context, int) attempt { <-answer; return attempt{} },
			settle: func(context.Context, []posted[int]) error { return nil },
		}
		done := make(chan int)
		go func() {
			n, _, err := drain(t.Context(), d, time.Now().Add(time.Minute), slow)
			if err != nil {
				t.Error(err)
			}
			done <- n
		}()
		time.Sleep(2 * time.Minute)
		n, first, err := drain(t.Context(), d, time.Now().Add(time.Minute), slow)
		require.NoError(t, err)
		require.True(t, first, "the other drain claims no more")
		require.Zero(t, n)
		close(answer)
		require.Equal(t, places.Caller, <-done)
		require.Equal(t, 0, seen[0])
		require.Equal(t, places.Caller, seen[len(seen)-1])
		require.Empty(t, slow.inFlight.list())
	})
}
