package subscribe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

func TestTokenIsFetchedOnceForAllInstances(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		value func(n int32) string
		calls int
	}{
		"a new value each time": {func(n int32) string { return fmt.Sprint("token-", n) }, 30},
		// A call that starts after a refresh cannot see that its stale token was replaced, and fetches again.
		// With one call for each instance, all calls have started before the first call fetches.
		"the same value each time": {func(int32) string { return "token" }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := sandbox.NewDatabase(t)
			instances := []*storetest.DB{storetest.OpenAt(t, url), storetest.OpenAt(t, url), storetest.OpenAt(t, url)}
			require.Equal(t, subscribe.ProviderToken{}, instances[0].MustToken(t))
			var fetches atomic.Int32
			var stale subscribe.ProviderToken
			for round := range int32(3) {
				start := make(chan struct{})
				var calling, ready sync.WaitGroup
				ready.Add(c.calls)
				tokens := make([]subscribe.ProviderToken, c.calls)
				for i := range c.calls {
					calling.Go(func() {
						ready.Done()
						<-start
						var err error
						tokens[i], err = instances[i%3].Subscribe.RefreshProviderToken(t.Context(), "wechat", "app", stale, func(context.Context) (subscribe.ProviderToken, error) {
							n := fetches.Add(1)
							require.Eventually(t, func() bool { // each instance has begun a refresh
								return instances[0].Subscribe.IsRefreshing() && instances[1].Subscribe.IsRefreshing() && instances[2].Subscribe.IsRefreshing()
							}, time.Minute, time.Millisecond)
							return subscribe.ProviderToken{Value: c.value(n), Left: 2 * time.Hour}, nil
						})
						require.NoError(t, err)
					})
				}
				ready.Wait()
				close(start)
				calling.Wait()
				require.Equal(t, round+1, fetches.Load(), "one fetch in each round")
				for _, token := range tokens {
					require.Equal(t, c.value(round+1), token.Value)
					require.InDelta(t, 2*time.Hour, token.Left, float64(10*time.Second))
				}
				stale = instances[round%3].MustToken(t)
				require.Equal(t, c.value(round+1), stale.Value)
			}
			require.Equal(t, 3, instances[0].Count(t, `select version from provider_tokens`))
		})
	}
}

func TestOnlyStaleOrExpiredTokenIsReplaced(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	returning := func(value string, left time.Duration) func(context.Context) (subscribe.ProviderToken, error) {
		return func(context.Context) (subscribe.ProviderToken, error) {
			return subscribe.ProviderToken{Value: value, Left: left}, nil
		}
	}
	refresh := func(stale string, fetch func(context.Context) (subscribe.ProviderToken, error)) (subscribe.ProviderToken, error) {
		return db.Subscribe.RefreshProviderToken(t.Context(), "wechat", "app", subscribe.ProviderToken{Value: stale}, fetch)
	}
	mustNotFetch := func(context.Context) (subscribe.ProviderToken, error) { panic("the token is already newer") }
	_, err := refresh("", returning("one", time.Hour))
	require.NoError(t, err)
	got, err := refresh("older", mustNotFetch)
	require.NoError(t, err)
	require.Equal(t, "one", got.Value)
	require.InDelta(t, time.Hour, got.Left, float64(10*time.Second))
	_, err = db.Subscribe.RefreshProviderToken(t.Context(), "wechat", "other app", subscribe.ProviderToken{Value: "one"}, returning("another", time.Hour))
	require.NoError(t, err)
	require.Equal(t, "one", db.MustToken(t).Value, "each app has its own token")

	db.Exec(t, `update provider_tokens set expires_at = now() - interval '1 minute'`)
	require.Less(t, db.MustToken(t).Left, time.Duration(0))
	got, err = refresh("older", returning("two", time.Hour))
	require.NoError(t, err)
	require.Equal(t, "two", got.Value, "an expired token is replaced even if the caller's stale token is older")
	for _, bad := range []func(context.Context) (subscribe.ProviderToken, error){returning("", time.Hour), returning("three", 0)} {
		_, err = refresh("two", bad)
		require.ErrorContains(t, err, "empty or expired")
	}
	require.Equal(t, "two", db.MustToken(t).Value)
}

func TestFailedFetchStoresNoToken(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	down := errors.New("the provider is down")
	_, err := db.Subscribe.RefreshProviderToken(t.Context(), "wechat", "app", subscribe.ProviderToken{}, func(context.Context) (subscribe.ProviderToken, error) {
		return subscribe.ProviderToken{Value: "failed", Left: time.Hour}, down
	})
	require.Equal(t, down, err, "the error is returned unchanged")
	require.Equal(t, subscribe.ProviderToken{}, db.MustToken(t))
	got, err := db.Subscribe.RefreshProviderToken(t.Context(), "wechat", "app", subscribe.ProviderToken{}, func(ctx context.Context) (subscribe.ProviderToken, error) {
		deadline, ok := ctx.Deadline()
		require.True(t, ok)
		require.LessOrEqual(t, time.Until(deadline), subscribe.FetchLimit, "the time of a fetch is limited")
		return subscribe.ProviderToken{Value: "fetched", Left: time.Hour}, nil
	})
	require.NoError(t, err)
	require.Equal(t, "fetched", got.Value)
}

func TestWaitForRefreshCanBeCancelled(t *testing.T) {
	t.Parallel()
	fetcher, other := storetest.OpenTwo(t)
	fetching, done := make(chan struct{}), make(chan struct{})
	var slow sync.WaitGroup
	slow.Go(func() {
		_, err := fetcher.Subscribe.RefreshProviderToken(t.Context(), "wechat", "app", subscribe.ProviderToken{}, func(context.Context) (subscribe.ProviderToken, error) {
			close(fetching)
			<-done
			return subscribe.ProviderToken{Value: "token", Left: time.Hour}, nil
		})
		require.NoError(t, err)
	})
	<-fetching
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for _, db := range []*storetest.DB{fetcher, other} {
		_, err := db.Subscribe.RefreshProviderToken(ctx, "wechat", "app", subscribe.ProviderToken{}, func(context.Context) (subscribe.ProviderToken, error) {
			panic("another call fetches the token")
		})
		require.Equal(t, task.CodeServerBusy, task.CodeOf(err), "%v", err)
	}
	require.Equal(t, subscribe.ProviderToken{}, other.MustToken(t), "reading does not wait")
	require.Zero(t, other.Count(t, `select count(*) from pg_stat_activity where datname = current_database() and backend_xid is not null`),
		"the transaction of a fetch has no ID: with an ID it would keep vacuum from removing dead rows")
	close(done)
	slow.Wait()
	require.Equal(t, "token", other.MustToken(t).Value)
}

func TestTokenIsNeverPrinted(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	secret := subscribe.ProviderToken{Value: "s3cr3t", Left: time.Hour}
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewJSONHandler(&log, nil), slog.NewTextHandler(&log, nil)} {
		slog.New(h).Info("x", "token", secret, "pointer", &secret, "inside", struct{ T subscribe.ProviderToken }{secret})
	}
	text, err := json.Marshal(map[string]any{"a": secret, "b": []subscribe.ProviderToken{secret}})
	require.NoError(t, err)
	log.Write(text)
	fmt.Fprintf(&log, "%v %+v %#v %s %q %x %v", secret, secret, secret, secret, secret, secret, &secret)
	db.Exec(t, `alter table provider_tokens add check (token = '')`)
	_, err = db.Subscribe.RefreshProviderToken(t.Context(), "wechat", "app", subscribe.ProviderToken{}, func(context.Context) (subscribe.ProviderToken, error) { return secret, nil })
	require.Error(t, err)
	fmt.Fprintf(&log, "%v %+v", err, err)
	require.NotContains(t, log.String(), "s3cr3t")
	require.NotContains(t, log.String(), fmt.Sprintf("%x", "s3cr3t"))
}
