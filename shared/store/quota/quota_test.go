package quota_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/quota"
)

// countTime is how long a count of eachKind takes.
const countTime = 10 * time.Millisecond

// eachKind makes both kinds of quotas: those that count each caller alone, and those that count all callers together. A count
// returns waiting for caller 1.
var eachKind = map[string]func(limit quota.Waiting, waiting *atomic.Int64) *quota.Quotas{
	"each alone": func(limit quota.Waiting, waiting *atomic.Int64) *quota.Quotas {
		return quota.New(limit, func(_ context.Context, caller, _ int64) (map[int64]quota.Waiting, int64, error) {
			time.Sleep(countTime)
			return map[int64]quota.Waiting{caller: {Items: waiting.Load()}}, 0, nil
		})
	},
	"all together": func(limit quota.Waiting, waiting *atomic.Int64) *quota.Quotas {
		return quota.NewJoint(limit, func(context.Context) (map[int64]quota.Waiting, error) {
			time.Sleep(countTime)
			return map[int64]quota.Waiting{1: {Items: waiting.Load()}}, nil
		})
	},
}

// A caller filled its quota and then paused. Meanwhile its items were finished, so its next call must not be refused.
func TestFullQuotaIsCountedAgainBeforeItRefuses(t *testing.T) {
	t.Parallel()
	for kind, newQuotas := range eachKind {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limit := quota.Waiting{Items: 2}
				var waiting atomic.Int64
				q := newQuotas(limit, &waiting)
				admitted := func() int {
					q.AwaitFirstCount(t.Context(), 1, limit)
					admission, _ := q.Admit(t.Context(), 1, limit, quota.Waiting{Items: 1, Bytes: 1}, 1)
					defer admission.End()
					return admission.Items()
				}
				waiting.Store(2)
				require.Zero(t, admitted())
				waiting.Store(0)
				time.Sleep(quota.CountEvery + time.Millisecond)
				require.Equal(t, 1, admitted())

				waiting.Store(2)
				time.Sleep(quota.CountEverySlow + time.Millisecond)
				q.Refresh(1, limit)
				time.Sleep(2 * countTime)
				require.Zero(t, admitted())
				waiting.Store(0)
				time.Sleep(quota.CountEvery + time.Millisecond)
				q.Refresh(2, limit)
				require.Equal(t, 1, admitted(), "the count under way is awaited")
			})
		})
	}
}
