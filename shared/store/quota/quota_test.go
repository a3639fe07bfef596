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

// A caller filled its quota and then paused. Meanwhile its items were finished, so its next call must not be refused.
func TestFullQuotaIsCountedAgainBeforeItRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := quota.Waiting{Items: 2}
		var waiting atomic.Int64
		q := quota.New(limit, func(_ context.Context, caller, _ int64) (map[int64]quota.Waiting, int64, error) {
			return map[int64]quota.Waiting{caller: {Items: waiting.Load()}}, 0, nil
		})
		admitted := func() int {
			q.AwaitCount(t.Context(), 1, limit)
			admission, _ := q.Admit(1, limit, quota.Waiting{Items: 1, Bytes: 1}, 1)
			defer admission.End()
			return admission.Items()
		}
		waiting.Store(2)
		require.Zero(t, admitted())
		waiting.Store(0)
		time.Sleep(quota.CountEvery + time.Millisecond)
		require.Equal(t, 1, admitted())
	})
}
