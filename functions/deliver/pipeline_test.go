package deliver

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/settings"
)

// newDeliverer returns a deliverer without a database.
func newDeliverer(t *testing.T) *deliverer {
	t.Helper()
	env, err := fn.NewEnv(settings.Config{DatabaseURL: "postgres://localhost:1/x"}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(env.Close)
	return &deliverer{env: env}
}

func TestLockedResultsAreSettledAgain(t *testing.T) {
	t.Parallel()
	d := newDeliverer(t)
	for name, callTime := range map[string]time.Duration{"until they are unlocked": time.Minute, "until the call ends": time.Second} {
		synctest.Test(t, func(t *testing.T) {
			started := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), callTime)
			defer cancel()
			var claimed, settled int
			pipe := pipeline[int]{
				inFlight: newWorkInFlight[int](),
				claim: func(_ context.Context, inFlight []int) ([]int, error) {
					if settled == 1 {
						require.Len(t, inFlight, 1, "the work of the locked result stays in flight")
					}
					if claimed > 0 {
						return nil, nil
					}
					claimed = 2
					return []int{1, 2}, nil
				},
				post: func(context.Context, int) attempt { return attempt{} },
				settle: func(_ context.Context, all []posted[int]) (locked []posted[int], err error) {
					for _, p := range all {
						if p.work == 2 && time.Since(started) < 10*time.Second {
							locked = append(locked, p)
						} else {
							settled++
						}
					}
					return locked, nil
				},
			}
			n, _, err := runPipeline(ctx, d, started.Add(30*time.Second), pipe)
			require.Equal(t, 2, n, name)
			if callTime == time.Second {
				require.ErrorContains(t, err, "other transactions", name)
				require.Equal(t, 1, settled, name)
			} else {
				require.NoError(t, err, name)
				require.Equal(t, 2, settled, name)
				require.Less(t, time.Since(started), 11*time.Second, name)
			}
			require.Empty(t, pipe.inFlight.list(), name)
		})
	}
}

func TestWorkIsFinishedAfterClientLeft(t *testing.T) {
	t.Parallel()
	d := newDeliverer(t)
	for name, moment := range map[string]string{"during the claim": "claim", "during the post": "post", "before a locked result is settled": "settle"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, leave := context.WithTimeout(t.Context(), time.Minute)
			var claims, settles int
			// leaveIn makes the client leave if step is the moment of the test, and returns the error of the step's context.
			leaveIn := func(step string, ctx context.Context) string {
				if step == moment {
					leave()
				}
				if ctx.Err() != nil {
					return step + ": " + ctx.Err().Error()
				}
				return ""
			}
			n, _, err := runPipeline(ctx, d, time.Now().Add(30*time.Second), pipeline[int]{
				inFlight: newWorkInFlight[int](),
				claim: func(ctx context.Context, _ []int) ([]int, error) {
					claims++
					require.Empty(t, leaveIn("claim", ctx), name)
					if claims > 1 {
						return nil, nil
					}
					return []int{1}, nil
				},
				post: func(ctx context.Context, _ int) attempt { return attempt{err: leaveIn("post", ctx)} },
				settle: func(ctx context.Context, all []posted[int]) (locked []posted[int], err error) {
					require.Empty(t, leaveIn("settle", ctx), name)
					if settles++; settles == 1 && moment == "settle" {
						return all, nil
					}
					require.Empty(t, all[0].err, name)
					return nil, nil
				},
			})
			require.NoError(t, err, name)
			require.Equal(t, 1, n, name)
			require.Equal(t, map[string]int{"claim": 1, "post": 1, "settle": 2}[moment], settles, name)
		})
	}
}

func TestWaitingRunKeepsItsWorkInFlight(t *testing.T) {
	t.Parallel()
	d := newDeliverer(t)
	synctest.Test(t, func(t *testing.T) {
		respond := make(chan struct{})
		var inFlightAtClaim []int
		slow := pipeline[int]{
			inFlight: newWorkInFlight[int](),
			claim: func(_ context.Context, inFlight []int) ([]int, error) {
				inFlightAtClaim = append(inFlightAtClaim, len(inFlight))
				return make([]int, limits.Account-len(inFlight)), nil
			},
			post:   func(context.Context, int) attempt { <-respond; return attempt{} },
			settle: func(context.Context, []posted[int]) ([]posted[int], error) { return nil, nil },
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		done := make(chan int)
		go func() {
			n, _, err := runPipeline(ctx, d, time.Now().Add(time.Minute), slow)
			if err != nil {
				t.Error(err)
			}
			done <- n
		}()
		time.Sleep(2 * time.Minute)
		n, started, err := runPipeline(ctx, d, time.Now().Add(time.Minute), slow)
		require.NoError(t, err)
		require.True(t, started, "the other run has stopped claiming")
		require.Zero(t, n)
		close(respond)
		require.Equal(t, limits.Account, <-done)
		require.Equal(t, 0, inFlightAtClaim[0])
		require.Equal(t, limits.Account, inFlightAtClaim[len(inFlightAtClaim)-1])
		require.Empty(t, slow.inFlight.list())
	})
}
