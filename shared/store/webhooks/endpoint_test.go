package webhooks_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

// submit submits a task of a caller.
func submit(t *testing.T, db *storetest.DB, caller int64, change ...func(*tasks.Submission)) *tasks.Submission {
	t.Helper()
	s := storetest.Submission(append(change, storetest.FromCaller(caller))...)
	db.MustSubmit(t, s)
	return s
}

// withResponse returns, for each claimed delivery, a try whose response had this status.
func withResponse(status int, due ...webhooks.DueDelivery) []webhooks.Tried {
	return store.Column(due, func(d webhooks.DueDelivery) webhooks.Tried {
		try := webhooks.Try{At: time.Now().UTC(), Status: status, DurationMS: 7, Response: "ok"}
		return webhooks.Tried{DueDelivery: d, Result: msg.PostResult{Status: status}, Try: try}
	})
}

// settle settles claimed deliveries with one HTTP status, and returns when they are tried again.
func settle(t *testing.T, db *storetest.DB, status int, due ...webhooks.DueDelivery) []time.Time {
	t.Helper()
	settled, err := db.Webhooks.SettleDeliveries(t.Context(), withResponse(status, due...), 120*time.Hour)
	require.NoError(t, err)
	return settled.NextTries
}

func mustDeliveries(t *testing.T, db *storetest.DB, f webhooks.DeliveryFilter) []webhooks.Delivery {
	t.Helper()
	f.Limit = 100
	page, more, err := db.Webhooks.Deliveries(t.Context(), f)
	require.NoError(t, err)
	require.False(t, more)
	return page
}

func TestEventIsRecordedOnceForEachReceiver(t *testing.T) {
	t.Parallel()
	storetest.WithAndWithoutPooler(t, func(t *testing.T, db *storetest.DB) {
		all := db.MustAddEndpoint(t, 7, "https://all.example")
		failures := db.MustAddEndpoint(t, 7, "https://failures.example", "task.failed", "task.held")
		db.MustAddEndpoint(t, 8, "https://stranger.example")
		s := submit(t, db, 7, storetest.WithCallback)
		for range 2 {
			require.Equal(t, 2, db.MustRecordEvent(t, s.ID, 1, "task.succeeded"), "one endpoint and the callback; the other endpoint is for failures only")
		}
		require.Equal(t, 3, db.MustRecordEvent(t, s.ID, 2, "task.failed"))
		require.Equal(t, 5, db.Count(t, `select count(*) from webhook_deliveries`), "one for each event and receiver, however often the event is recorded")
		require.Len(t, mustDeliveries(t, db, webhooks.DeliveryFilter{EndpointID: failures.ID}), 1)
		require.Len(t, mustDeliveries(t, db, webhooks.DeliveryFilter{EndpointID: all.ID, Subject: &s.ID}), 2)

		due := db.MustClaimDeliveries(t)
		require.Len(t, due, 5)
		for _, d := range due {
			want := []string{"whsec_" + d.URL}
			if d.URL == s.CallbackURL {
				want = []string{storetest.FirstSecret()}
			}
			require.Equal(t, want, d.Secrets)
		}
		require.Empty(t, db.MustClaimDeliveries(t), "each is leased")
		require.Empty(t, settle(t, db, 200, due...))
		for _, d := range mustDeliveries(t, db, webhooks.DeliveryFilter{}) {
			require.Equal(t, "delivered", d.State)
			require.Len(t, d.Tries, 1)
			require.Equal(t, int64(7), d.Tries[0].DurationMS)
		}
		_, unknown, err := db.Webhooks.RecordEvents(t.Context(), []webhooks.RecordedEvent{{ID: "x", Kind: "task.succeeded", Subject: task.NewID()}}, storetest.FirstSecret)
		require.NoError(t, err)
		require.Equal(t, []int{0}, unknown)
	})
}

// If a caller has many endpoints and its events are large, one call records them in several statements. The events of a
// caller with few endpoints are recorded first, even if they are last in the call.
func TestEventsOfCallersWithFewEndpointsAreRecordedFirst(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for n := range 20 {
		db.MustAddEndpoint(t, 7, fmt.Sprintf("https://greedy.example/%d", n))
	}
	db.MustAddEndpoint(t, 8, "https://calm.example")
	greedy, calm := submit(t, db, 7), submit(t, db, 8)
	var events []webhooks.RecordedEvent
	for n := range 64 {
		events = append(events, webhooks.RecordedEvent{ID: fmt.Sprint(n), Kind: "task.failed", Type: "t", Subject: greedy.ID, Payload: strings.Repeat("p", 40_000)})
	}
	events = append(events, webhooks.RecordedEvent{ID: "last", Kind: "task.failed", Type: "t", Subject: calm.ID, Payload: "{}"})
	for range 2 {
		recorded, unknown, err := db.Webhooks.RecordEvents(t.Context(), events, storetest.FirstSecret)
		require.NoError(t, err)
		require.Empty(t, unknown)
		require.Equal(t, 64*20+1, recorded)
	}
	require.Equal(t, 64*20+1, db.Count(t, `select count(*) from webhook_deliveries`), "once each")
	require.Zero(t, db.Count(t, `select count(*) from webhook_deliveries where id < (select id from webhook_deliveries where caller_id = 8)`))
	require.LessOrEqual(t, db.Count(t, `select max(n) from (select count(*) as n from webhook_deliveries group by xmin::text) as statements`), webhooks.RecordRows)
	require.LessOrEqual(t, db.Count(t, `select max(n) from (select sum(length(payload)) as n from webhook_events group by xmin::text) as statements`), webhooks.RecordBytes)
	require.Zero(t, db.Count(t, `select count(*) from (select lead(event_id::integer) over (partition by endpoint_id order by next_at) - event_id::integer as step
		from webhook_deliveries where caller_id = 7) as steps where step <> 1`), "each endpoint gets the events in order")
}

// claimPayloads makes all pending deliveries due and claims them. It returns the payloads by URL; several of one URL are joined.
func claimPayloads(t *testing.T, db *storetest.DB) map[string]string {
	t.Helper()
	db.Exec(t, `update webhook_deliveries set next_at = now() where state = 0`)
	payloads := map[string]string{}
	for _, d := range db.MustClaimDeliveries(t) {
		payloads[d.URL] += d.Payload
	}
	return payloads
}

func TestEventIsStoredOnceForAllEndpoints(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	want := map[string]string{"https://calm.example": "calm"}
	for n := range webhooks.MaxEndpoints {
		want[db.MustAddEndpoint(t, 7, fmt.Sprintf("https://greedy.example/%d", n)).URL] = "greedy"
	}
	db.MustAddEndpoint(t, 8, "https://calm.example")
	a, b := submit(t, db, 7, storetest.WithCallback), submit(t, db, 8)
	want[a.CallbackURL] = "greedy"
	record := func(greedy string) {
		_, _, err := db.Webhooks.RecordEvents(t.Context(), []webhooks.RecordedEvent{
			{ID: "a", Kind: "task.failed", Subject: a.ID, Payload: greedy}, {ID: "b", Kind: "task.failed", Subject: b.ID, Payload: "calm"},
			{ID: "a", Kind: "task.failed", Subject: a.ID, Payload: greedy},
		}, storetest.FirstSecret)
		require.NoError(t, err)
	}
	record("greedy")
	require.Equal(t, webhooks.MaxEndpoints+2, db.Count(t, `select count(*) from webhook_deliveries`))
	require.Equal(t, 2, db.Count(t, `select count(*) from webhook_events`))
	require.Equal(t, want, claimPayloads(t, db))

	record("another text")
	require.Equal(t, want, claimPayloads(t, db), "each try sends the same bytes")
	_, err := db.Webhooks.RotateEndpoint(t.Context(), mustDeliveries(t, db, webhooks.DeliveryFilter{Subject: &b.ID})[0].EndpointID, nil, "whsec_new", store.Operator{Name: "shop"})
	require.NoError(t, err)
	for _, d := range mustDeliveries(t, db, webhooks.DeliveryFilter{}) {
		require.Empty(t, d.Payload)
		detail, err := db.Webhooks.Delivery(t.Context(), d.ID, nil)
		require.NoError(t, err)
		require.Equal(t, want[d.URL], detail.Payload)
	}
}

// An event is deleted only after its last delivery was deleted, however late that delivery ended, and not while the event is recorded
// again.
func TestEventOutlivesItsDeliveries(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 30))
	db.MustAddEndpoint(t, 7, "https://one.example")
	db.MustAddEndpoint(t, 7, "https://two.example")
	s := submit(t, db, 7)
	db.MustRecordEvent(t, s.ID, 1, "task.failed")
	due := db.MustClaimDeliveries(t)
	settle(t, db, 200, due...)
	const makeOldSQL = `update webhook_deliveries set finished_at = now() - interval '40 days' where state <> 0; update webhook_events set recorded_at = now() - interval '50 days'`
	_, err := db.Webhooks.Resend(t.Context(), due[0].ID, nil, store.Operator{Name: "shop"})
	require.NoError(t, err)
	db.Exec(t, makeOldSQL)
	require.Equal(t, map[string]int{"webhook_deliveries": 1}, db.MustArchive(t, maintenance.ArchiveRun{}))
	again := db.MustClaimDeliveries(t)
	require.Len(t, again, 1)
	require.Equal(t, due[0].Payload, again[0].Payload)
	settle(t, db, 200, again...)
	db.Exec(t, makeOldSQL)

	release := db.HoldLock(t, `select from webhook_deliveries for update`)
	require.Empty(t, db.MustArchive(t, maintenance.ArchiveRun{}), "the last delivery of the event is locked")
	release()
	db.Exec(t, `delete from webhook_deliveries`)
	release = db.HoldLock(t, `update webhook_events set recorded_at = now()`) // the lock that recording the event again would hold
	require.Empty(t, db.MustArchive(t, maintenance.ArchiveRun{}), "the event is being recorded")
	release()
	db.Exec(t, makeOldSQL)
	db.MustRecordEvent(t, s.ID, 1, "task.failed")
	require.Empty(t, db.MustArchive(t, maintenance.ArchiveRun{}), "the event was recorded again")
	settle(t, db, 200, db.MustClaimDeliveries(t)...)
	db.Exec(t, makeOldSQL)
	require.Equal(t, map[string]int{"webhook_deliveries": 2, "webhook_events": 1}, db.MustArchive(t, maintenance.ArchiveRun{}))
}

func TestEndpointAtItsLimitDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	busy, calm := db.MustAddEndpoint(t, 7, "https://busy.example"), db.MustAddEndpoint(t, 8, "https://calm.example")
	a, b := submit(t, db, 7), submit(t, db, 8)
	for n := range 10 {
		db.MustRecordEvent(t, a.ID, n, "task.pending")
	}
	db.MustRecordEvent(t, b.ID, 1, "task.succeeded")
	count := func(due []webhooks.DueDelivery) map[webhooks.Destination]int {
		n := map[webhooks.Destination]int{}
		for _, d := range due {
			n[d.Destination]++
		}
		return n
	}
	first := db.MustClaimDeliveries(t)
	require.Equal(t, map[webhooks.Destination]int{{EndpointID: busy.ID}: 3, {EndpointID: calm.ID}: 1}, count(first), "at most three of one endpoint")
	require.Empty(t, db.MustClaimDeliveries(t, first...), "deliveries in flight use up the limit")
	require.Len(t, settle(t, db, 500, first...), 4)
	require.Equal(t, map[webhooks.Destination]int{{EndpointID: busy.ID}: 1}, count(db.MustClaimDeliveries(t)), "a failing endpoint gets one at a time")

	db.Exec(t, `update webhook_deliveries set next_at = now() where state = 0`) // ends all leases and all waits for the next try
	again := db.MustClaimDeliveries(t)
	require.Equal(t, map[webhooks.Destination]int{{EndpointID: busy.ID}: 1, {EndpointID: calm.ID}: 1}, count(again))
	settle(t, db, 204, again...)
	require.Equal(t, map[webhooks.Destination]int{{EndpointID: busy.ID}: 3}, count(db.MustClaimDeliveries(t)), "an endpoint that works again has its full limit again")
	_, err := db.Webhooks.DisableEndpoint(t.Context(), busy.ID, nil, store.Operator{Name: "ops"})
	require.NoError(t, err)
	db.Exec(t, `update webhook_deliveries set next_at = now() where state = 0`)
	require.Empty(t, db.MustClaimDeliveries(t), "deliveries to a disabled endpoint wait")
	_, err = db.Webhooks.EnableEndpoint(t.Context(), busy.ID, nil, store.Operator{Name: "ops"})
	require.NoError(t, err)
	require.NotEmpty(t, db.MustClaimDeliveries(t))
}

func TestCallbacksToOneHostDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for n := range 10 {
		s := submit(t, db, 0, func(s *tasks.Submission) { s.CallbackURL = "https://slow.example/" + fmt.Sprint(n) })
		db.MustRecordEvent(t, s.ID, 1, "task.succeeded")
	}
	quick := submit(t, db, 0, func(s *tasks.Submission) { s.CallbackURL = "https://quick.example/events" })
	db.MustRecordEvent(t, quick.ID, 1, "task.succeeded")
	hosts := map[string]int{}
	for _, d := range db.MustClaimDeliveries(t) {
		hosts[d.Host]++
	}
	require.Equal(t, map[string]int{"slow.example": 3, "quick.example": 1}, hosts)
	next, due, err := db.Webhooks.NextDelivery(t.Context())
	require.NoError(t, err)
	require.True(t, due)
	require.WithinDuration(t, time.Now(), next, time.Minute)
}

func TestLateResultCountsOnlyIfItIsASuccess(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustAddEndpoint(t, 7, "https://shop.example")
	s := submit(t, db, 7)
	db.MustRecordEvent(t, s.ID, 1, "task.succeeded")
	first := db.MustClaimDeliveries(t)
	db.Exec(t, `update webhook_deliveries set next_at = now()`)
	second := db.MustClaimDeliveries(t)
	require.Len(t, second, 1)
	settle(t, db, 500, first...)
	d := mustDeliveries(t, db, webhooks.DeliveryFilter{State: "pending"})[0]
	require.Zero(t, db.Count(t, `select attempts from webhook_deliveries`), "a late failure does not count for the schedule")
	require.Len(t, d.Tries, 1, "but the try is listed")
	require.EqualValues(t, 1, d.Tried)
	settle(t, db, 200, first...)
	require.Len(t, mustDeliveries(t, db, webhooks.DeliveryFilter{State: "delivered"}), 1)
	settle(t, db, 500, second...)
	require.Len(t, mustDeliveries(t, db, webhooks.DeliveryFilter{State: "delivered"}), 1)
}

// The table refuses tries whose text is longer than 1 MiB. The forged tries are just short enough, so the table would refuse one more
// try, and no delivery of the batch could be settled. So SettleDeliveries replaces the forged tries.
func TestSettleReplacesTriesThatAreTooLarge(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustAddEndpoint(t, 7, "https://shop.example")
	forged, other := submit(t, db, 7), submit(t, db, 7)
	db.MustRecordEvent(t, forged.ID, 1, "task.succeeded")
	db.MustRecordEvent(t, other.ID, 2, "task.succeeded")
	db.Exec(t, `update webhook_deliveries set tries = ('[' || repeat('1e131071, ', 7) || '1e131000]')::jsonb where subject = $1`, forged.ID)
	settle(t, db, 200, db.MustClaimDeliveries(t)...)
	delivered := mustDeliveries(t, db, webhooks.DeliveryFilter{State: "delivered"})
	require.Len(t, delivered, 2)
	require.Equal(t, 2, db.Count(t, `select count(*) from webhook_deliveries where jsonb_array_length(tries) = 1`))
}

func TestGoneOrFailingEndpointIsDisabledWithAnEvent(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	gone, failing := db.MustAddEndpoint(t, 7, "https://gone.example"), db.MustAddEndpoint(t, 7, "https://failing.example")
	s := submit(t, db, 7, storetest.WithCallback)
	db.MustRecordEvent(t, s.ID, 1, "task.succeeded")
	for _, d := range db.MustClaimDeliveries(t) {
		status := map[string]int{gone.URL: 410, failing.URL: 503, s.CallbackURL: 410}[d.URL]
		settle(t, db, status, d)
	}
	e, err := db.Webhooks.Endpoint(t.Context(), gone.ID, nil)
	require.NoError(t, err)
	require.Equal(t, msg.DisabledGone, e.DisabledReason)
	require.NotNil(t, e.DisabledAt)
	require.Len(t, mustDeliveries(t, db, webhooks.DeliveryFilter{State: "failed"}), 2, "the delivery to the endpoint and the callback")
	secret, err := db.Webhooks.SigningSecret(t.Context(), 7, "other")
	require.NoError(t, err)
	require.Equal(t, storetest.FirstSecret(), secret.Secret, "a callback that is gone leaves the caller's secret as it is")

	db.Exec(t, `update webhook_endpoints set failing_since = now() - interval '121 hours' where id = $1 and failing_since is not null`, failing.ID)
	db.Exec(t, `update webhook_deliveries set next_at = now() where state = 0`)
	settle(t, db, 503, db.MustClaimDeliveries(t)...)
	e, err = db.Webhooks.Endpoint(t.Context(), failing.ID, nil)
	require.NoError(t, err)
	require.Equal(t, msg.DisabledFailing, e.DisabledReason)
	kinds, ids := db.Outbox(t)
	require.Equal(t, []string{"webhook.disabled", "webhook.disabled"}, kinds)
	require.Equal(t, [][]task.ID{{gone.ID}, {failing.ID}}, ids)
	relayed := db.RelayEvents(t, func(int) msg.Outcome { return msg.Accepted })
	require.Equal(t, gone.URL, relayed[0].URL)
	require.Equal(t, msg.DisabledGone, relayed[0].DisabledReason)
	db.MustAddEndpoint(t, 7, "https://other.example")
	require.Equal(t, 1, db.MustRecordEvent(t, gone.ID, 9, "webhook.disabled"), "the caller's other endpoint receives the event")

	require.NoError(t, db.Webhooks.DeleteEndpoint(t.Context(), gone.ID, nil, store.Operator{Name: "shop"}))
	require.Equal(t, 1, db.MustRecordEvent(t, gone.ID, 10, "webhook.disabled"), "also after the endpoint was deleted")
	_, unknown, err := db.Webhooks.RecordEvents(t.Context(), []webhooks.RecordedEvent{{ID: "x", Kind: "webhook.disabled", Subject: task.NewID()}}, storetest.FirstSecret)
	require.NoError(t, err)
	require.Empty(t, unknown, "an event about an endpoint is never reported as unknown")
}

func TestResendKeepsTheIDOfTheEvent(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	e := db.MustAddEndpoint(t, 7, "https://shop.example")
	s := submit(t, db, 7)
	db.MustRecordEvent(t, s.ID, 1, "task.succeeded")
	first := db.MustClaimDeliveries(t)
	settle(t, db, 200, first...)
	_, err := db.Webhooks.Resend(t.Context(), first[0].ID, new(int64(8)), store.Operator{Name: "stranger"})
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	d, err := db.Webhooks.Resend(t.Context(), first[0].ID, new(int64(7)), store.Operator{Name: "shop"})
	require.NoError(t, err)
	require.Equal(t, "pending", d.State)
	db.MustRecordEvent(t, s.ID, 1, "task.succeeded") // the event is recorded again
	second := db.MustClaimDeliveries(t)
	require.Len(t, second, 1)
	require.Equal(t, first[0].EventID, second[0].EventID)
	settle(t, db, 500, first...) // the late result of the try before the resend
	require.Zero(t, db.Count(t, `select attempts from webhook_deliveries`))
	settle(t, db, 200, second...)
	require.Len(t, mustDeliveries(t, db, webhooks.DeliveryFilter{State: "delivered"}), 1)
	require.EqualValues(t, 3, mustDeliveries(t, db, webhooks.DeliveryFilter{})[0].Tried, "every try counts, also one after a resend and one whose result is late")

	_, err = db.Webhooks.DisableEndpoint(t.Context(), e.ID, nil, store.Operator{Name: "ops"})
	require.NoError(t, err)
	_, err = db.Webhooks.Resend(t.Context(), first[0].ID, nil, store.Operator{Name: "ops"})
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
}

func TestOldSecretSignsForADayAfterARotation(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	e := db.MustAddEndpoint(t, 7, "https://shop.example")
	s := submit(t, db, 7, storetest.WithCallback)
	db.MustRecordEvent(t, s.ID, 1, "task.succeeded")
	rotated, err := db.Webhooks.RotateEndpoint(t.Context(), e.ID, nil, "whsec_new", store.Operator{Name: "shop"})
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), *rotated.OldSecretUntil, time.Minute)
	_, err = db.Webhooks.RotateSigningSecret(t.Context(), 7, "whsec_sign", store.Operator{Name: "shop"})
	require.NoError(t, err)
	for _, d := range db.MustClaimDeliveries(t) {
		want := []string{"whsec_new", "whsec_https://shop.example"}
		if d.URL == s.CallbackURL {
			want = []string{"whsec_sign", storetest.FirstSecret()}
		}
		require.Equal(t, want, d.Secrets)
	}
	db.Exec(t, `update webhook_deliveries set next_at = now(); update webhook_endpoints set old_secret_until = now()`)
	for _, d := range db.MustClaimDeliveries(t) {
		require.Len(t, d.Secrets, 1)
	}
	require.Zero(t, db.Count(t, `select count(*) from operator_actions where before::text || after::text like '%whsec%'`), "audit entries have no secrets")
}

func TestDeletedEndpointReceivesNothing(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	e := db.MustAddEndpoint(t, 7, "https://shop.example")
	s := submit(t, db, 7)
	db.MustRecordEvent(t, s.ID, 1, "task.succeeded")
	due := db.MustClaimDeliveries(t)
	require.NoError(t, db.Webhooks.DeleteEndpoint(t.Context(), e.ID, nil, store.Operator{Name: "shop"}))
	settle(t, db, 500, due...)
	require.Len(t, mustDeliveries(t, db, webhooks.DeliveryFilter{State: "failed"}), 1)
	require.Zero(t, db.MustRecordEvent(t, s.ID, 2, "task.failed"))
	_, err := db.Webhooks.Endpoint(t.Context(), e.ID, nil)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}

func TestCallerHasAtMostTwentyEndpoints(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for n := range webhooks.MaxEndpoints {
		db.MustAddEndpoint(t, 7, fmt.Sprintf("https://%d.example", n))
	}
	_, err := db.Webhooks.AddEndpoint(t.Context(), webhooks.NewEndpoint{CallerID: 7, URL: "https://x.example", Secret: "s"}, store.Operator{Name: "shop"})
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	db.MustAddEndpoint(t, 8, "https://x.example")
	page, more, err := db.Webhooks.Endpoints(t.Context(), new(int64(7)), task.ID{}, 15)
	require.NoError(t, err)
	require.True(t, more)
	rest, more, err := db.Webhooks.Endpoints(t.Context(), new(int64(7)), page[14].ID, 15)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, rest, 5)
}

func TestCallerWithEndpointsCannotBeDeleted(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustAddEndpoint(t, 0, "https://built-in-admin.example")
	e := db.MustAddEndpoint(t, 7, "https://shop.example")
	_, err := db.Webhooks.AddEndpoint(t.Context(), webhooks.NewEndpoint{CallerID: 8, URL: "https://nobody.example", Secret: "s"}, store.Operator{Name: "x"})
	require.ErrorContains(t, err, "webhook_endpoints_registered_caller_fkey", "there is no caller 8")
	_, err = db.Owner.Exec(t.Context(), `delete from callers where id = 7`)
	require.ErrorContains(t, err, "webhook_endpoints_registered_caller_fkey")
	require.NoError(t, db.Webhooks.DeleteEndpoint(t.Context(), e.ID, nil, store.Operator{Name: "x"}))
	db.Exec(t, `delete from callers where id = 7`)
}

// Events of all callers are recorded together, and results of all callers are settled together. Neither may wait for a
// transaction of one caller. Results of locked rows are skipped and settled later.
func TestLockedEndpointDelaysOnlyItsOwnResults(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	busy := db.MustAddEndpoint(t, 7, "https://busy.example")
	db.MustAddEndpoint(t, 8, "https://calm.example")
	a, b := submit(t, db, 7), submit(t, db, 8)
	for name, held := range map[string]struct {
		sql    string
		args   []any
		status int // of the responses
	}{
		"settling":               {sql: webhooks.LockHealthSQL, args: []any{[]task.ID{busy.ID}, []task.ID{busy.ID}}, status: 500},
		"an endpoint's update":   {sql: strings.ReplaceAll(webhooks.LockEndpointSQL, "$2", "null"), args: []any{busy.ID}, status: 500},
		"an endpoint's deletion": {sql: `select from webhook_endpoints where id = $1 for update`, args: []any{busy.ID}, status: 500},
		"a resend":               {sql: `select from webhook_deliveries where endpoint_id = $1 for update`, args: []any{busy.ID}, status: 200},
	} {
		record := func() int {
			n, _, err := db.Webhooks.RecordEvents(t.Context(), []webhooks.RecordedEvent{
				{ID: name + " a", Kind: "task.failed", Subject: a.ID, Payload: `{}`}, {ID: name + " b", Kind: "task.failed", Subject: b.ID, Payload: `{}`},
			}, storetest.FirstSecret)
			require.NoError(t, err, name)
			return n
		}
		require.Equal(t, 2, record())
		tried := withResponse(held.status, db.MustClaimDeliveries(t)...)
		require.Len(t, tried, 2, name)
		release := db.HoldLock(t, held.sql, held.args...)
		require.Equal(t, 2, record(), name)
		settled, err := db.Webhooks.SettleDeliveries(t.Context(), tried, time.Hour)
		require.NoError(t, err, name)
		require.Len(t, settled.Unsettled, 1, name)
		locked := tried[settled.Unsettled[0]]
		require.Equal(t, busy.ID, locked.EndpointID, name)
		require.Equal(t, 1, db.Count(t, `select count(*) from webhook_deliveries where tried = 1`), name)
		release()
		settled, err = db.Webhooks.SettleDeliveries(t.Context(), []webhooks.Tried{locked}, time.Hour)
		require.NoError(t, err, name)
		require.Empty(t, settled.Unsettled, name)
		require.Equal(t, 2, db.Count(t, `select count(*) from webhook_deliveries where tried = 1`), name)
		db.Exec(t, `delete from webhook_deliveries; update webhook_endpoints set failing_since = null`)
	}
}

// A success does not change a healthy endpoint, so SettleDeliveries does not lock the endpoint.
func TestSuccessIsSettledWhileItsEndpointIsLocked(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	e := db.MustAddEndpoint(t, 7, "https://shop.example")
	s := submit(t, db, 7)
	db.MustRecordEvent(t, s.ID, 1, "task.failed")
	due := db.MustClaimDeliveries(t)
	db.HoldLock(t, `select from webhook_endpoints where id = $1 for update`, e.ID)
	settle(t, db, 200, due...)
	require.Len(t, mustDeliveries(t, db, webhooks.DeliveryFilter{State: "delivered"}), 1)
}

// The deletion of an endpoint is a short transaction, however many deliveries are pending for it.
func TestDeletionEndsPendingDeliveriesInBatches(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	deleted, other := db.MustAddEndpoint(t, 7, "https://deleted.example"), db.MustAddEndpoint(t, 7, "https://other.example")
	const pending = 2*webhooks.EndedAtOnce + 10
	db.Exec(t, `
insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url)
select gen_random_uuid(), n::text, e, 7, 'x', gen_random_uuid(), 'u' from generate_series(1, $3::int) n, unnest(array[$1::uuid, $2::uuid]) e`, deleted.ID, other.ID, pending)
	ended := func() int {
		return db.Count(t, `select count(*) from webhook_deliveries where endpoint_id = '`+deleted.ID.String()+`' and state = 2 and finished_at is not null`)
	}
	require.NoError(t, db.Webhooks.DeleteEndpoint(t.Context(), deleted.ID, nil, store.Operator{Name: "shop"}))
	require.Equal(t, webhooks.EndedAtOnce, ended())
	for _, d := range db.MustClaimDeliveries(t) {
		require.Equal(t, other.ID, d.EndpointID)
	}
	more, err := db.Webhooks.EndUndeliverable(t.Context())
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, 2*webhooks.EndedAtOnce, ended())
	more, err = db.Webhooks.EndUndeliverable(t.Context())
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, pending, ended())
	require.Equal(t, pending, db.Count(t, `select count(*) from webhook_deliveries where state = 0`), "the deliveries of the other endpoint")
}

func TestFailedClaimReturnsNoDeliveries(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustAddEndpoint(t, 7, "https://shop.example")
	s := submit(t, db, 7)
	require.Equal(t, 1, db.MustRecordEvent(t, s.ID, 1, "task.succeeded"))
	db.Exec(t, `create function fail() returns trigger language plpgsql as $$ begin perform 1 / 0; return null; end $$`)
	db.Exec(t, `create constraint trigger fail after update on webhook_deliveries deferrable initially deferred for each row execute function fail()`)
	due, err := db.Webhooks.ClaimDeliveries(t.Context(), messages.InFlightLimits{All: 10, Account: 10, Destination: 10, Failing: 10}, nil, time.Minute)
	require.Error(t, err, "the commit fails, after the rows were returned")
	require.Empty(t, due)
	db.Exec(t, `drop trigger fail on webhook_deliveries`)
	require.Len(t, db.MustClaimDeliveries(t), 1)
}

// A chat robot can subscribe only to alert.raised, alert.cleared and webhook.disabled: events of tasks have no text for robots.
// Only robots of DingTalk and Feishu may have a secret. An endpoint for CloudEvents must have one.
func TestEndpointThatDoesNotFitItsFormatIsRefused(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	addWith := func(secret, format string, events ...string) error {
		e := webhooks.NewEndpoint{URL: "https://robot.example", Format: format, Events: events, Secret: secret}
		_, err := db.Webhooks.AddEndpoint(t.Context(), e, store.Operator{Name: "admin"})
		return err
	}
	add := func(format string, events ...string) error {
		return addWith(map[string]string{"cloudevents": "whsec_x"}[format], format, events...)
	}
	for _, format := range webhooks.Formats {
		require.NoError(t, add(format, "alert.raised", "alert.cleared", "webhook.disabled"))
	}
	require.NoError(t, add("cloudevents", "task.failed"))
	require.ErrorContains(t, add("slack"), "webhook_endpoints_format")
	require.ErrorContains(t, add("wecom", "alert.raised", "task.failed"), "webhook_endpoints_format")
	require.ErrorContains(t, add("teams", "alert.raised"), "webhook_endpoints_format")

	require.NoError(t, addWith("SEC1", "dingtalk", "alert.raised"))
	require.NoError(t, addWith("SEC1", "feishu", "alert.raised"))
	for _, format := range []string{"slack", "wecom"} {
		require.ErrorContains(t, addWith("SEC1", format, "alert.raised"), "webhook_endpoints_secret")
	}
	require.ErrorContains(t, addWith("", "cloudevents"), "webhook_endpoints_secret")
}
