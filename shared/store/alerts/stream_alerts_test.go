package alerts_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/alerts"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

func TestStreamAlertIsRaisedAndClearedOnce(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	var raised, cleared atomic.Int64
	instances := make([]*storetest.DB, 5)
	for i := range instances {
		instances[i] = storetest.OpenAt(t, url, withThresholds, func(c *stores.Config) {
			c.Alerts.StreamFull = 0.8
			c.OnAlert = func(_ task.ID, a task.Alert, isCleared bool) {
				if isCleared {
					cleared.Add(1)
				} else {
					raised.Add(1)
				}
				if a.Kind != task.AlertStreamFull || a.Queue != "USERS" || a.Threshold != 0.8 {
					t.Error(a)
				}
			}
		})
	}
	unavailable := errors.New("unavailable")
	checkAll := func(used map[string]float64, usedErr error) bool {
		return onAll(t, instances, func(db *storetest.DB) (open bool, err error) {
			open, err = db.Alerts.CheckStreams(context.Background(), func(context.Context) (map[string]float64, error) { return used, usedErr })
			if !errors.Is(err, usedErr) {
				return open, fmt.Errorf("got %v, want %v", err, usedErr)
			}
			return open, nil
		})
	}
	db := instances[0]
	require.False(t, checkAll(map[string]float64{"USERS": 0.8, "EVENTS": 0}, nil))
	require.False(t, checkAll(nil, unavailable))
	for n := 1; n <= 2; n++ {
		require.True(t, checkAll(map[string]float64{"USERS": 0.9, "EVENTS": 0}, nil))
		require.True(t, checkAll(nil, unavailable), "the alert stays open")
		require.True(t, checkAll(map[string]float64{"EVENTS": 0}, unavailable), "the usage of USERS is not known")
		check(t, db)
		db.Maintain(t)
		require.Nil(t, alertList(t, db)[0].ClearedAt, "a check of queues does not clear the alert")
		checkAll(map[string]float64{"USERS": 0.5, "EVENTS": 0}, nil)
		require.False(t, checkAll(map[string]float64{"USERS": 0.5}, nil))
		require.EqualValues(t, n, raised.Load())
		require.EqualValues(t, n, cleared.Load())
	}
	list := alertList(t, db)
	require.Len(t, list, 2)
	require.Equal(t, task.Alert{Kind: task.AlertStreamFull, Queue: "USERS", Value: 0.9, Threshold: 0.8}, list[0].Alert)
	require.InDelta(t, 0.5, *list[0].ClearedValue, 0)
	kinds, _ := db.Outbox(t)
	require.Equal(t, []string{"alert.raised", "alert.cleared", "alert.raised", "alert.cleared"}, kinds)

	// An alert of a stream is not an alert of a queue, not even of a queue with the stream's name.
	page, _, err := db.Alerts.List(t.Context(), []string{"USERS"}, alerts.Cursor{}, 50)
	require.NoError(t, err)
	require.Empty(t, page)
}

func TestStreamAlertsAreClearedWhenTheyAreOff(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	on, off := storetest.OpenAt(t, url, func(c *stores.Config) { c.Alerts.StreamFull = 0.8 }), storetest.OpenAt(t, url)
	full := func(context.Context) (map[string]float64, error) { return map[string]float64{"USERS": 1}, nil }
	open, err := on.Alerts.CheckStreams(t.Context(), full)
	require.NoError(t, err)
	require.True(t, open)
	open, err = off.Alerts.CheckStreams(t.Context(), func(context.Context) (map[string]float64, error) {
		t.Error("the usage of streams was read without a threshold")
		return nil, nil
	})
	require.NoError(t, err)
	require.False(t, open)
	require.NotNil(t, alertList(t, on)[0].ClearedAt)
}
