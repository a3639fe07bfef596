package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	_, err := db.owner(t).Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// told records the n-th event of a task.
func (db *DB) told(t *testing.T, subject task.ID, n int, kind string) int {
	t.Helper()
	heard, unknown, err := db.RecordEvents(t.Context(), []RecordedEvent{{
		ID: fmt.Sprintf("%s-%d", subject, n), Kind: kind, Type: "sendonce." + kind + ".v1", Subject: subject, Payload: `{}`,
	}}, fresh)
	require.NoError(t, err)
	require.Empty(t, unknown)
	return heard
}

func (db *DB) mustClaimDeliveries(t *testing.T, inHand ...DueDelivery) []DueDelivery {
	t.Helper()
	due, err := db.ClaimDeliveries(t.Context(), Places{All: 100, Caller: 100, Lane: 3, Failing: 100}, inHand, time.Minute)
	require.NoError(t, err)
	return due
}

func fresh() string { return "whsec_fresh" }

func byCaller[T any](all []T, caller func(T) int64) map[int64]int {
	n := map[int64]int{}
	for _, one := range all {
		n[caller(one)]++
	}
	return n
}
