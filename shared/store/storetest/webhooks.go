package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

// MustRecordEvent records the n-th event of a subject and returns how many deliveries the event has, old ones included.
func (db *DB) MustRecordEvent(t *testing.T, subject task.ID, n int, kind string) int {
	t.Helper()
	recorded, unknown, err := db.Webhooks.RecordEvents(t.Context(), []webhooks.RecordedEvent{{
		ID: fmt.Sprintf("%s-%d", subject, n), Kind: kind, Type: "sendonce." + kind + ".v1", Subject: subject, Payload: `{}`,
	}}, FirstSecret)
	require.NoError(t, err)
	require.Empty(t, unknown)
	return recorded
}

func (db *DB) MustClaimDeliveries(t *testing.T, inFlight ...webhooks.DueDelivery) []webhooks.DueDelivery {
	t.Helper()
	due, err := db.Webhooks.ClaimDeliveries(t.Context(), messages.InFlightLimits{All: 100, Account: 100, Destination: 3, Failing: 100}, inFlight, time.Minute)
	require.NoError(t, err)
	return due
}

// FirstSecret is an argument fresh for RecordEvents: it always returns the same signing secret.
func FirstSecret() string { return "whsec_first" }

// ByCaller counts values by caller.
func ByCaller[T any](all []T, caller func(T) int64) map[int64]int {
	n := map[int64]int{}
	for _, value := range all {
		n[caller(value)]++
	}
	return n
}

func (db *DB) MustAddEndpoint(t *testing.T, caller int64, url string, events ...string) webhooks.Endpoint {
	t.Helper()
	db.EnsureCaller(t, caller)
	e, err := db.Webhooks.AddEndpoint(t.Context(), webhooks.NewEndpoint{CallerID: caller, URL: url, Events: events, Secret: "whsec_" + url}, store.Operator{CallerID: caller, Name: "shop"})
	require.NoError(t, err)
	return e
}
