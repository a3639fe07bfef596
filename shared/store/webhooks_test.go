package store

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// settle answers all deliveries with one status.
func (db *DB) settle(t *testing.T, status int, due ...DueDelivery) []time.Time {
	t.Helper()
	var tried []Tried
	for _, d := range due {
		tried = append(tried, Tried{d, msg.Answer{Status: status}, Try{At: time.Now().UTC(), Status: status, DurationMS: 7, Response: "ok"}})
	}
	settled, err := db.SettleDeliveries(t.Context(), tried, 120*time.Hour)
	require.NoError(t, err)
	return settled.Again
}

func (db *DB) mustDeliveries(t *testing.T, f DeliveryFilter) []Delivery {
	t.Helper()
	f.Limit = 100
	page, more, err := db.Deliveries(t.Context(), f)
	require.NoError(t, err)
	require.False(t, more)
	return page
}

func TestAnEventIsToldOnceToEachWhoIsToHearOfIt(t *testing.T) {
	t.Parallel()
	for name, pooler := range map[string]bool{"directly": false, "as behind a pooler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openAt(t, sandbox.NewDatabase(t), func(c *Config) { c.Pooler = pooler })
			all := db.mustAddEndpoint(t, 7, "https://all.example")
			failures := db.mustAddEndpoint(t, 7, "https://failures.example", "task.failed", "task.held")
			db.mustAddEndpoint(t, 8, "https://stranger.example")
			s := message(fromCaller(7), withCallback)
			db.mustSubmit(t, s)
			for range 2 {
				require.Equal(t, 2, db.told(t, s.ID, 1, "task.succeeded"), "everybody but those who want failures")
			}
			require.Equal(t, 3, db.told(t, s.ID, 2, "task.failed"))
			require.Equal(t, 5, db.count(t, `select count(*) from webhook_deliveries`), "once, however often it is recorded")
			require.Len(t, db.mustDeliveries(t, DeliveryFilter{EndpointID: failures.ID}), 1)
			require.Len(t, db.mustDeliveries(t, DeliveryFilter{EndpointID: all.ID, Subject: &s.ID}), 2)

			due := db.mustClaimDeliveries(t)
			require.Len(t, due, 5)
			for _, d := range due {
				want := []string{"whsec_" + d.URL}
				if d.URL == s.CallbackURL {
					want = []string{fresh()}
				}
				require.Equal(t, want, d.Secrets)
			}
			require.Empty(t, db.mustClaimDeliveries(t), "each is in one hand")
			require.Empty(t, db.settle(t, 200, due...))
			for _, d := range db.mustDeliveries(t, DeliveryFilter{}) {
				require.Equal(t, "delivered", d.State)
				require.Len(t, d.Tries, 1)
				require.Equal(t, int64(7), d.Tries[0].DurationMS)
			}
			_, unknown, err := db.RecordEvents(t.Context(), []RecordedEvent{{ID: "x", Kind: "task.succeeded", Subject: task.NewID()}}, fresh)
			require.NoError(t, err)
			require.Equal(t, []int{0}, unknown)
		})
	}
}

// Events that are recorded together are recorded in several statements where a caller has
// many endpoints and large events; those of its neighbour, which came last, go first.
func TestEventsOfCallersWithFewEndpointsAreRecordedFirst(t *testing.T) {
	t.Parallel()
	db := open(t)
	for n := range 20 {
		db.mustAddEndpoint(t, 7, fmt.Sprintf("https://greedy.example/%d", n))
	}
	db.mustAddEndpoint(t, 8, "https://calm.example")
	tasks := []*Submission{message(fromCaller(7)), message(fromCaller(8))}
	db.mustSubmit(t, tasks...)
	var events []RecordedEvent
	for n := range 64 {
		events = append(events, RecordedEvent{ID: fmt.Sprint(n), Kind: "task.failed", Type: "t", Subject: tasks[0].ID, Payload: strings.Repeat("p", 40_000)})
	}
	events = append(events, RecordedEvent{ID: "last", Kind: "task.failed", Type: "t", Subject: tasks[1].ID, Payload: "{}"})
	for range 2 {
		told, unknown, err := db.RecordEvents(t.Context(), events, fresh)
		require.NoError(t, err)
		require.Empty(t, unknown)
		require.Equal(t, 64*20+1, told)
	}
	require.Equal(t, 64*20+1, db.count(t, `select count(*) from webhook_deliveries`), "once each")
	require.Zero(t, db.count(t, `select count(*) from webhook_deliveries where id < (select id from webhook_deliveries where caller_id = 8)`))
	require.LessOrEqual(t, db.count(t, `select max(n) from (select count(*) as n from webhook_deliveries group by xmin::text) of`), recordRows)
	require.LessOrEqual(t, db.count(t, `select max(n) from (select sum(length(payload)) as n from webhook_events group by xmin::text) of`), recordBytes)
	require.Zero(t, db.count(t, `select count(*) from (select lead(event_id::integer) over (partition by endpoint_id order by next_at) - event_id::integer as step
		from webhook_deliveries where caller_id = 7) of where step <> 1`), "each endpoint has them in their order")
}

// claimPayloads claims all that is pending, and returns what is sent to each URL.
func (db *DB) claimPayloads(t *testing.T) map[string]string {
	t.Helper()
	db.exec(t, `update webhook_deliveries set next_at = now() where state = 0`)
	sent := map[string]string{}
	for _, d := range db.mustClaimDeliveries(t) {
		sent[d.URL] += d.Payload
	}
	return sent
}

func TestEventIsStoredOnceForAllEndpoints(t *testing.T) {
	t.Parallel()
	db := open(t)
	want := map[string]string{"https://calm.example": "calm"}
	for n := range maxEndpoints {
		want[db.mustAddEndpoint(t, 7, fmt.Sprintf("https://greedy.example/%d", n)).URL] = "greedy"
	}
	db.mustAddEndpoint(t, 8, "https://calm.example")
	a, b := message(fromCaller(7), withCallback), message(fromCaller(8))
	want[a.CallbackURL] = "greedy"
	db.mustSubmit(t, a, b)
	record := func(greedy string) {
		_, _, err := db.RecordEvents(t.Context(), []RecordedEvent{
			{ID: "a", Kind: "task.failed", Subject: a.ID, Payload: greedy}, {ID: "b", Kind: "task.failed", Subject: b.ID, Payload: "calm"},
			{ID: "a", Kind: "task.failed", Subject: a.ID, Payload: greedy},
		}, fresh)
		require.NoError(t, err)
	}
	record("greedy")
	require.Equal(t, maxEndpoints+2, db.count(t, `select count(*) from webhook_deliveries where own_payload is null`))
	require.Equal(t, 2, db.count(t, `select count(*) from webhook_events`))
	require.Equal(t, want, db.claimPayloads(t))

	record("another text")
	require.Equal(t, want, db.claimPayloads(t), "each try sends the same bytes")
	_, err := db.RotateEndpoint(t.Context(), db.mustDeliveries(t, DeliveryFilter{Subject: &b.ID})[0].EndpointID, nil, "whsec_new", Operator{Name: "shop"})
	require.NoError(t, err)
	db.exec(t, `update webhook_deliveries set own_payload = 'own' where url like '%/7'`)
	want["https://greedy.example/7"] = "own"
	require.Equal(t, want, db.claimPayloads(t), "so does one that an older version recorded")
	for _, d := range db.mustDeliveries(t, DeliveryFilter{}) {
		require.Empty(t, d.Payload)
		one, err := db.Delivery(t.Context(), d.ID, nil)
		require.NoError(t, err)
		require.Equal(t, want[d.URL], one.Payload)
	}
}

// An event is deleted with its last delivery, however late that ends, and not while it is
// recorded again.
func TestEventOutlivesItsDeliveries(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := keeping(t, url, 90, 30)
	db.mustAddEndpoint(t, 7, "https://one.example")
	db.mustAddEndpoint(t, 7, "https://two.example")
	s := message(fromCaller(7))
	db.mustSubmit(t, s)
	db.told(t, s.ID, 1, "task.failed")
	due := db.mustClaimDeliveries(t)
	db.settle(t, 200, due...)
	const age = `update webhook_deliveries set finished_at = now() - interval '40 days' where state <> 0; update webhook_events set recorded_at = now() - interval '50 days'`
	_, err := db.Resend(t.Context(), due[0].ID, nil, Operator{Name: "shop"})
	require.NoError(t, err)
	db.exec(t, age)
	require.Equal(t, map[string]int{"webhook_deliveries": 1}, db.archivedRows(t, ArchiveRun{}))
	again := db.mustClaimDeliveries(t)
	require.Len(t, again, 1)
	require.Equal(t, due[0].Payload, again[0].Payload)
	db.settle(t, 200, again...)
	db.exec(t, age)

	release := hold(t, url, `select from webhook_deliveries for update`)
	require.Empty(t, db.archivedRows(t, ArchiveRun{}), "its last delivery is in use")
	release()
	db.exec(t, `delete from webhook_deliveries`)
	release = hold(t, url, `update webhook_events set recorded_at = now()`) // as while it is recorded again
	require.Empty(t, db.archivedRows(t, ArchiveRun{}), "it is being recorded")
	release()
	db.exec(t, age)
	db.told(t, s.ID, 1, "task.failed")
	require.Empty(t, db.archivedRows(t, ArchiveRun{}), "it was recorded again")
	db.settle(t, 200, db.mustClaimDeliveries(t)...)
	db.exec(t, age)
	require.Equal(t, map[string]int{"webhook_deliveries": 2, "webhook_events": 1}, db.archivedRows(t, ArchiveRun{}))
}

func TestNoEndpointKeepsAnotherOneWaiting(t *testing.T) {
	t.Parallel()
	db := open(t)
	busy, calm := db.mustAddEndpoint(t, 7, "https://busy.example"), db.mustAddEndpoint(t, 8, "https://calm.example")
	a, b := message(fromCaller(7)), message(fromCaller(8))
	db.mustSubmit(t, a, b)
	for n := range 10 {
		db.told(t, a.ID, n, "task.pending")
	}
	db.told(t, b.ID, 1, "task.succeeded")
	count := func(due []DueDelivery) map[Destination]int {
		n := map[Destination]int{}
		for _, d := range due {
			n[d.Destination]++
		}
		return n
	}
	first := db.mustClaimDeliveries(t)
	require.Equal(t, map[Destination]int{{EndpointID: busy.ID}: 3, {EndpointID: calm.ID}: 1}, count(first), "three at once of one endpoint")
	require.Empty(t, db.mustClaimDeliveries(t, first...), "those in hand count")
	require.Len(t, db.settle(t, 500, first...), 4)
	require.Equal(t, map[Destination]int{{EndpointID: busy.ID}: 1}, count(db.mustClaimDeliveries(t)), "one that fails is tried singly")

	db.exec(t, `update webhook_deliveries set next_at = now() where state = 0`) // all leases ended
	again := db.mustClaimDeliveries(t)
	require.Equal(t, map[Destination]int{{EndpointID: busy.ID}: 1, {EndpointID: calm.ID}: 1}, count(again))
	db.settle(t, 204, again...)
	require.Equal(t, map[Destination]int{{EndpointID: busy.ID}: 3}, count(db.mustClaimDeliveries(t)), "one that works again has its places back")
	_, err := db.DisableEndpoint(t.Context(), busy.ID, nil, Operator{Name: "ops"})
	require.NoError(t, err)
	db.exec(t, `update webhook_deliveries set next_at = now() where state = 0`)
	require.Empty(t, db.mustClaimDeliveries(t), "what a disabled endpoint has pending rests")
	_, err = db.EnableEndpoint(t.Context(), busy.ID, nil, Operator{Name: "ops"})
	require.NoError(t, err)
	require.NotEmpty(t, db.mustClaimDeliveries(t))
}

func TestACallbackKeepsNoneToAnotherHostWaiting(t *testing.T) {
	t.Parallel()
	db := open(t)
	for n := range 10 {
		s := message(func(s *Submission) { s.CallbackURL = "https://slow.example/" + fmt.Sprint(n) })
		db.mustSubmit(t, s)
		db.told(t, s.ID, 1, "task.succeeded")
	}
	quick := message(func(s *Submission) { s.CallbackURL = "https://quick.example/told" })
	db.mustSubmit(t, quick)
	db.told(t, quick.ID, 1, "task.succeeded")
	hosts := map[string]int{}
	for _, d := range db.mustClaimDeliveries(t) {
		hosts[d.Host]++
	}
	require.Equal(t, map[string]int{"slow.example": 3, "quick.example": 1}, hosts)
	next, due, err := db.NextDelivery(t.Context())
	require.NoError(t, err)
	require.True(t, due)
	require.WithinDuration(t, time.Now(), next, time.Minute)
}

func TestALateAnswerCountsOnlyWhenItIsASuccess(t *testing.T) {
	t.Parallel()
	db := open(t)
	db.mustAddEndpoint(t, 7, "https://shop.example")
	s := message(fromCaller(7))
	db.mustSubmit(t, s)
	db.told(t, s.ID, 1, "task.succeeded")
	first := db.mustClaimDeliveries(t)
	db.exec(t, `update webhook_deliveries set next_at = now()`)
	second := db.mustClaimDeliveries(t)
	require.Len(t, second, 1)
	db.settle(t, 500, first...)
	d := db.mustDeliveries(t, DeliveryFilter{State: "pending"})[0]
	require.Zero(t, db.count(t, `select attempts from webhook_deliveries`), "no failure of the schedule")
	require.Len(t, d.Tries, 1, "it is listed all the same")
	require.EqualValues(t, 1, d.Tried)
	db.settle(t, 200, first...)
	require.Len(t, db.mustDeliveries(t, DeliveryFilter{State: "delivered"}), 1)
	db.settle(t, 500, second...)
	require.Len(t, db.mustDeliveries(t, DeliveryFilter{State: "delivered"}), 1)
}

func TestAnEndpointThatIsGoneOrFailsForDaysIsDisabledAndThatIsTold(t *testing.T) {
	t.Parallel()
	db := open(t)
	gone, failing := db.mustAddEndpoint(t, 7, "https://gone.example"), db.mustAddEndpoint(t, 7, "https://failing.example")
	s := message(fromCaller(7), withCallback)
	db.mustSubmit(t, s)
	db.told(t, s.ID, 1, "task.succeeded")
	for _, d := range db.mustClaimDeliveries(t) {
		status := map[string]int{gone.URL: 410, failing.URL: 503, s.CallbackURL: 410}[d.URL]
		db.settle(t, status, d)
	}
	e, err := db.Endpoint(t.Context(), gone.ID, nil)
	require.NoError(t, err)
	require.Equal(t, msg.DisabledGone, e.DisabledReason)
	require.NotNil(t, e.DisabledAt)
	require.Len(t, db.mustDeliveries(t, DeliveryFilter{State: "failed"}), 2, "that of the endpoint and that of the callback")
	secret, err := db.SigningSecret(t.Context(), 7, "other")
	require.NoError(t, err)
	require.Equal(t, fresh(), secret.Secret, "a callback that is gone ends nothing but itself")

	db.exec(t, `update webhook_endpoints set failing_since = now() - interval '121 hours' where id = $1 and failing_since is not null`, failing.ID)
	db.exec(t, `update webhook_deliveries set next_at = now() where state = 0`)
	db.settle(t, 503, db.mustClaimDeliveries(t)...)
	e, err = db.Endpoint(t.Context(), failing.ID, nil)
	require.NoError(t, err)
	require.Equal(t, msg.DisabledFailing, e.DisabledReason)
	kinds, ids := db.outbox(t)
	require.Equal(t, []string{"webhook.disabled", "webhook.disabled"}, kinds)
	require.Equal(t, [][]task.ID{{gone.ID}, {failing.ID}}, ids)
	told := db.relayEvents(t, func(int) msg.Outcome { return msg.Taken })
	require.Equal(t, gone.URL, told[0].URL)
	require.Equal(t, msg.DisabledGone, told[0].DisabledReason)
	db.mustAddEndpoint(t, 7, "https://other.example")
	require.Equal(t, 1, db.told(t, gone.ID, 9, "webhook.disabled"), "the caller hears of it by another endpoint")
}

func TestAResendTellsAnEventAgainUnderItsOwnID(t *testing.T) {
	t.Parallel()
	db := open(t)
	e := db.mustAddEndpoint(t, 7, "https://shop.example")
	s := message(fromCaller(7))
	db.mustSubmit(t, s)
	db.told(t, s.ID, 1, "task.succeeded")
	first := db.mustClaimDeliveries(t)
	db.settle(t, 200, first...)
	seven, eight := int64(7), int64(8)
	_, err := db.Resend(t.Context(), first[0].ID, &eight, Operator{Name: "stranger"})
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	d, err := db.Resend(t.Context(), first[0].ID, &seven, Operator{Name: "shop"})
	require.NoError(t, err)
	require.Equal(t, "pending", d.State)
	db.told(t, s.ID, 1, "task.succeeded") // the event comes once more
	second := db.mustClaimDeliveries(t)
	require.Len(t, second, 1)
	require.Equal(t, first[0].EventID, second[0].EventID)
	db.settle(t, 500, first...) // of the try before the resend
	require.Zero(t, db.count(t, `select attempts from webhook_deliveries`))
	db.settle(t, 200, second...)
	require.Len(t, db.mustDeliveries(t, DeliveryFilter{State: "delivered"}), 1)
	require.EqualValues(t, 3, db.mustDeliveries(t, DeliveryFilter{})[0].Tried, "every try counts, also after a resend and late ones")

	_, err = db.DisableEndpoint(t.Context(), e.ID, nil, Operator{Name: "ops"})
	require.NoError(t, err)
	_, err = db.Resend(t.Context(), first[0].ID, nil, Operator{Name: "ops"})
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
}

func TestARotatedSecretSignsForADay(t *testing.T) {
	t.Parallel()
	db := open(t)
	e := db.mustAddEndpoint(t, 7, "https://shop.example")
	s := message(fromCaller(7), withCallback)
	db.mustSubmit(t, s)
	db.told(t, s.ID, 1, "task.succeeded")
	rotated, err := db.RotateEndpoint(t.Context(), e.ID, nil, "whsec_new", Operator{Name: "shop"})
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), *rotated.OldSecretUntil, time.Minute)
	_, err = db.RotateSigningSecret(t.Context(), 7, "whsec_sign", Operator{Name: "shop"})
	require.NoError(t, err)
	for _, d := range db.mustClaimDeliveries(t) {
		want := []string{"whsec_new", "whsec_https://shop.example"}
		if d.URL == s.CallbackURL {
			want = []string{"whsec_sign", fresh()}
		}
		require.Equal(t, want, d.Secrets)
	}
	db.exec(t, `update webhook_deliveries set next_at = now(); update webhook_endpoints set old_secret_until = now()`)
	for _, d := range db.mustClaimDeliveries(t) {
		require.Len(t, d.Secrets, 1)
	}
	require.Zero(t, db.count(t, `select count(*) from operator_actions where before::text || after::text like '%whsec%'`), "no secret is kept there")
}

func TestADeletedEndpointIsToldNothingMore(t *testing.T) {
	t.Parallel()
	db := open(t)
	e := db.mustAddEndpoint(t, 7, "https://shop.example")
	s := message(fromCaller(7))
	db.mustSubmit(t, s)
	db.told(t, s.ID, 1, "task.succeeded")
	due := db.mustClaimDeliveries(t)
	require.NoError(t, db.DeleteEndpoint(t.Context(), e.ID, nil, Operator{Name: "shop"}))
	db.settle(t, 500, due...)
	require.Len(t, db.mustDeliveries(t, DeliveryFilter{State: "failed"}), 1)
	require.Zero(t, db.told(t, s.ID, 2, "task.failed"))
	_, err := db.Endpoint(t.Context(), e.ID, nil)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}

func TestCallerHasAtMostTwentyEndpoints(t *testing.T) {
	t.Parallel()
	db := open(t)
	for n := range maxEndpoints {
		db.mustAddEndpoint(t, 7, fmt.Sprintf("https://%d.example", n))
	}
	_, err := db.AddEndpoint(t.Context(), NewEndpoint{CallerID: 7, URL: "https://x.example", Secret: "s"}, Operator{Name: "shop"})
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	db.mustAddEndpoint(t, 8, "https://x.example")
	seven := int64(7)
	page, more, err := db.Endpoints(t.Context(), &seven, task.ID{}, 15)
	require.NoError(t, err)
	require.True(t, more)
	rest, more, err := db.Endpoints(t.Context(), &seven, page[14].ID, 15)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, rest, 5)
}

func TestACallerWithEndpointsCannotBeRemoved(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := openAt(t, url), owner(t, url)
	db.mustAddEndpoint(t, 0, "https://environment.example")
	e := db.mustAddEndpoint(t, 7, "https://shop.example")
	_, err := db.AddEndpoint(t.Context(), NewEndpoint{CallerID: 8, URL: "https://nobody.example", Secret: "s"}, Operator{Name: "x"})
	require.ErrorContains(t, err, "webhook_endpoints_registered_caller_fkey", "nobody is caller 8")
	_, err = conn.Exec(t.Context(), `delete from callers where id = 7`)
	require.ErrorContains(t, err, "webhook_endpoints_registered_caller_fkey")
	require.NoError(t, db.DeleteEndpoint(t.Context(), e.ID, nil, Operator{Name: "x"}))
	_, err = conn.Exec(t.Context(), `delete from callers where id = 7`)
	require.NoError(t, err)
}

// Events of all callers are recorded together, so recording must wait neither for
// deliveries that are settled nor for changes of an endpoint, whoever owns it, and these
// must not wait for it.
func TestRecordingWaitsForNoOneElse(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := openAt(t, url)
	busy, calm := db.mustAddEndpoint(t, 7, "https://busy.example"), db.mustAddEndpoint(t, 8, "https://calm.example")
	a, b := message(fromCaller(7)), message(fromCaller(8))
	db.mustSubmit(t, a, b)
	db.told(t, a.ID, 1, "task.failed")
	due := db.mustClaimDeliveries(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for name, held := range map[string]struct {
		sql string
		arg any
	}{
		"settling": {lockHealthSQL, []task.ID{busy.ID}}, "a change": {strings.ReplaceAll(lockEndpointSQL, "$2", "null"), busy.ID},
	} {
		release := hold(t, url, held.sql, held.arg)
		told, _, err := db.RecordEvents(ctx, []RecordedEvent{
			{ID: name + " a", Kind: "task.failed", Subject: a.ID, Payload: `{}`}, {ID: name + " b", Kind: "task.failed", Subject: b.ID, Payload: `{}`},
		}, fresh)
		require.NoError(t, err, name)
		require.Equal(t, 2, told)
		release()
	}
	release := hold(t, url, `select from webhook_endpoints where id = any($1) for key share`, []task.ID{busy.ID, calm.ID})
	settled, err := db.SettleDeliveries(ctx, []Tried{{due[0], msg.Answer{Status: 500}, Try{Status: 500}}}, time.Hour)
	require.NoError(t, err)
	require.Len(t, settled.Changed, 1)
	_, err = db.RotateEndpoint(ctx, busy.ID, nil, "whsec_new", Operator{Name: "shop"})
	require.NoError(t, err)
	release()
}
