package webhooks_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

// smallLimits are the limits that these tests claim with.
var smallLimits = messages.InFlightLimits{All: 16, Account: 4, Destination: 2, Failing: 4}

// insertDueDeliveries inserts n due deliveries for each host; the host "" is for a registered endpoint.
func insertDueDeliveries(t *testing.T, db *storetest.DB, endpoint task.ID, caller int64, n int, hosts ...string) {
	t.Helper()
	db.Exec(t, `insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url, host, next_at)
		select gen_random_uuid(), gen_random_uuid()::text, $1, $2, 'x', gen_random_uuid(), 'u', host, now() - n * interval '1 second'
		from unnest($3::text[]) host, generate_series(1, $4::integer) n`, endpoint, caller, hosts, n)
}

// insertDuePosts inserts n messages to each host that are due to be posted.
func insertDuePosts(t *testing.T, db *storetest.DB, caller int64, n int, hosts ...string) {
	t.Helper()
	db.Exec(t, `with m as (
			insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
			select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), $1, 's', gen_random_uuid(), 1, 'https://' || host, 't', '1', false, 5, 1
			from unnest($2::text[]) host, generate_series(1, $3::integer) returning id, destination)
		insert into message_live (id, kind, caller_id, destination_key, remaining_sends) select id, 1, $1, $1::text || ' ' || substr(destination, 9), 5 from m`,
		caller, hosts, n)
}

func claimDeliveries(t *testing.T, db *storetest.DB, inFlight ...webhooks.DueDelivery) []webhooks.DueDelivery {
	t.Helper()
	due, err := db.Webhooks.ClaimDeliveries(t.Context(), smallLimits, inFlight, time.Minute)
	require.NoError(t, err)
	return due
}

func claimPosts(t *testing.T, db *storetest.DB, inFlight ...messages.Post) []messages.Post {
	t.Helper()
	due, err := db.Messages.ClaimPosts(t.Context(), smallLimits, inFlight, time.Minute)
	require.NoError(t, err)
	return due
}

func hostNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%d.example", i)
	}
	return names
}

func TestCallerLimitCoversAllItsEndpoints(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	caller := func(d webhooks.DueDelivery) int64 { return d.CallerID }
	for n := range webhooks.MaxEndpoints {
		insertDueDeliveries(t, db, db.MustAddEndpoint(t, 7, fmt.Sprintf("https://%d.example", n)).ID, 7, 10, "")
	}
	insertDueDeliveries(t, db, callbackEndpoint(t, db, 7), 7, 1, hostNames(20)...)
	first := claimDeliveries(t, db)
	require.Equal(t, map[int64]int{7: 4}, storetest.ByCaller(first, caller), "the limit holds even if no other caller has deliveries due")
	require.Empty(t, claimDeliveries(t, db, first...), "deliveries in flight count towards the limit")

	insertDueDeliveries(t, db, db.MustAddEndpoint(t, 8, "https://neighbour.example").ID, 8, 2, "")
	require.Equal(t, map[int64]int{8: 2}, storetest.ByCaller(claimDeliveries(t, db, first...), caller))
	require.Equal(t, map[int64]int{7: 2}, storetest.ByCaller(claimDeliveries(t, db, first[:2]...), caller), "two of the caller's four deliveries are no longer in flight")

	insertDueDeliveries(t, db, db.MustAddEndpoint(t, 9, "https://another.example").ID, 9, 3, "")
	two := smallLimits
	two.All = 2
	for range 2 { // caller 9 has the fewest deliveries in flight, so it comes before caller 7 with its many endpoints
		due, err := db.Webhooks.ClaimDeliveries(t.Context(), two, first[:1], time.Minute)
		require.NoError(t, err)
		require.Equal(t, map[int64]int{9: 1}, storetest.ByCaller(due, caller), "one of the two that All allows is in flight already")
	}
}

// The callers that a limited operator has created belong to the account of the operator. Here the callers 7 to 16 are one account.
func TestCallersOfAnAccountShareOneLimit(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	account := func(caller int64) int64 {
		if caller < 20 {
			return 7
		}
		return caller
	}
	ofDelivery, ofPost := func(d webhooks.DueDelivery) int64 { return account(d.CallerID) }, func(p messages.Post) int64 { return account(p.CallerID) }
	for caller := int64(7); caller < 17; caller++ {
		insertDueDeliveries(t, db, db.MustAddEndpoint(t, caller, fmt.Sprintf("https://%d.example", caller)).ID, caller, 10, "")
		insertDueDeliveries(t, db, callbackEndpoint(t, db, caller), caller, 1, hostNames(5)...)
		insertDuePosts(t, db, caller, 2, hostNames(5)...)
	}
	db.Exec(t, `update callers set made_by = 7, account_id = 7 where id > 7`)
	deliveries, posts := claimDeliveries(t, db), claimPosts(t, db)
	require.Equal(t, map[int64]int{7: 4}, storetest.ByCaller(deliveries, ofDelivery), "the limit is for the whole account")
	require.Equal(t, map[int64]int{7: 4}, storetest.ByCaller(posts, ofPost))
	require.Empty(t, claimDeliveries(t, db, deliveries...), "deliveries in flight of any caller of the account count")
	require.Empty(t, claimPosts(t, db, posts...))

	for caller := int64(20); caller < 23; caller++ {
		insertDueDeliveries(t, db, db.MustAddEndpoint(t, caller, "https://neighbour.example").ID, caller, 2, "")
		insertDuePosts(t, db, caller, 2, "neighbour.example")
	}
	require.Equal(t, map[int64]int{20: 2, 21: 2, 22: 2}, storetest.ByCaller(claimDeliveries(t, db, deliveries...), ofDelivery))
	require.Equal(t, map[int64]int{20: 2, 21: 2, 22: 2}, storetest.ByCaller(claimPosts(t, db, posts...), ofPost))

	db.Exec(t, `update webhook_deliveries set next_at = now() where state = 0; update message_live set next_at = now()`)
	few := smallLimits
	few.All = 4
	due, err := db.Webhooks.ClaimDeliveries(t.Context(), few, nil, time.Minute)
	require.NoError(t, err)
	require.Equal(t, map[int64]int{7: 1, 20: 1, 21: 1, 22: 1}, storetest.ByCaller(due, ofDelivery), "one for each account")
	duePosts, err := db.Messages.ClaimPosts(t.Context(), few, nil, time.Minute)
	require.NoError(t, err)
	require.Equal(t, map[int64]int{7: 1, 20: 1, 21: 1, 22: 1}, storetest.ByCaller(duePosts, ofPost))

	db.Exec(t, `update webhook_endpoints set failing_since = now(); update webhook_deliveries set next_at = now() where state = 0`)
	failing := claimDeliveries(t, db)
	require.Equal(t, map[int64]int{7: 1, 20: 1, 21: 1, 22: 1}, storetest.ByCaller(failing, ofDelivery), "a quarter of the limit of failing endpoints for each account")
}

func TestFailingEndpointsHaveALowerLimit(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	caller := func(d webhooks.DueDelivery) int64 { return d.CallerID }
	for n := range webhooks.MaxEndpoints - 1 {
		insertDueDeliveries(t, db, db.MustAddEndpoint(t, 7, fmt.Sprintf("https://%d.example", n)).ID, 7, 10, "")
	}
	insertDueDeliveries(t, db, db.MustAddEndpoint(t, 8, "https://neighbour.example").ID, 8, 10, "")
	db.Exec(t, `update webhook_endpoints set failing_since = now()`)
	insertDueDeliveries(t, db, db.MustAddEndpoint(t, 7, "https://healthy.example").ID, 7, 10, "")
	first := claimDeliveries(t, db)
	require.Equal(t, map[int64]int{7: 3, 8: 1}, storetest.ByCaller(first, caller), "caller 7: one for a failing endpoint and two for the healthy one")
	db.Exec(t, `update webhook_deliveries set next_at = now() where state = 0`)
	require.Empty(t, claimDeliveries(t, db, first...), "the healthy endpoint and both callers' failing ones are at their limits")
}

// A robot gets one text in 4 s. If it refused 500 events because of their text, and these were due before all others, it would get
// the next alert after half an hour.
func TestEventsThatRobotRefusedAndNewEventsDoNotDelayEachOther(t *testing.T) {
	t.Parallel()
	limits := messages.InFlightLimits{All: 100, Account: 32, Destination: 16, Failing: 32}
	for _, c := range []struct {
		refused, fresh int
		failing        bool
		claimed        int // new events that the first claim returns
	}{{500, 30, false, 16}, {1, 30, false, 16}, {500, 30, true, 4}, {1, 60, true, 4}} {
		db := storetest.Open(t)
		endpoint := db.MustAddEndpoint(t, 7, "https://robot.example", "alert.raised").ID
		db.Exec(t, `update webhook_endpoints set format = 'wecom', secret = null, failing_since = case when $1 then now() end`, c.failing)
		insertDueDeliveries(t, db, endpoint, 7, c.refused, "")
		db.Exec(t, `update webhook_deliveries set claims = 1, tried = 1, next_at = next_at - interval '1 hour'`)
		insertDueDeliveries(t, db, endpoint, 7, c.fresh, "")
		claim := func(inFlight []webhooks.DueDelivery) (single, fresh []webhooks.DueDelivery) {
			due, err := db.Webhooks.ClaimDeliveries(t.Context(), limits, inFlight, time.Minute)
			require.NoError(t, err)
			for _, d := range due {
				if d.Single() {
					single = append(single, d)
				} else {
					fresh = append(fresh, d)
				}
			}
			return single, fresh
		}
		single, fresh := claim(nil)
		require.Len(t, single, 1, "%+v", c)
		require.Len(t, fresh, c.claimed, "%+v", c)
		moreSingle, moreFresh := claim(append(single, fresh[1:]...))
		require.Empty(t, moreSingle, "%+v", c)
		require.Len(t, moreFresh, 1, "%+v", c)
		moreSingle, moreFresh = claim(fresh)
		require.Len(t, moreSingle, min(c.refused-1, 1), "%+v", c)
		require.Empty(t, moreFresh, "%+v", c)
	}
}

func TestFailingEndpointsOfAccountTakeTurns(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	robot := db.MustAddEndpoint(t, 7, "https://robot.example", "alert.raised").ID
	db.Exec(t, `update webhook_endpoints set format = 'wecom', secret = null`)
	insertDueDeliveries(t, db, robot, 7, 10, "")
	for n := range 7 {
		insertDueDeliveries(t, db, db.MustAddEndpoint(t, 7, fmt.Sprintf("https://%d.example", n)).ID, 7, 10, "")
	}
	db.Exec(t, `update webhook_endpoints set failing_since = now()`)
	due, err := db.Webhooks.ClaimDeliveries(t.Context(), messages.InFlightLimits{All: 100, Account: 32, Destination: 16, Failing: 32}, nil, time.Minute)
	require.NoError(t, err)
	endpoints := map[task.ID]bool{}
	for _, d := range due {
		endpoints[d.EndpointID] = true
	}
	require.Len(t, due, 8)
	require.Len(t, endpoints, 8, "one delivery of each endpoint, although more new events of the robot are due")
}

func TestCallerLimitCoversAllItsHosts(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	caller := func(p messages.Post) int64 { return p.CallerID }
	insertDuePosts(t, db, 7, 10, hostNames(100)...)
	first := claimPosts(t, db)
	require.Equal(t, map[int64]int{7: 4}, storetest.ByCaller(first, caller))
	require.Len(t, byHost(first), 4, "four hosts, one post each")
	require.Empty(t, claimPosts(t, db, first...))
	insertDuePosts(t, db, 8, 3, "neighbour.example")
	insertDuePosts(t, db, 9, 3, "another.example")
	require.Equal(t, map[int64]int{8: 2, 9: 2}, storetest.ByCaller(claimPosts(t, db, first...), caller))
	few := smallLimits
	few.All = 3
	db.Exec(t, `update message_live set next_at = now()`)
	due, err := db.Messages.ClaimPosts(t.Context(), few, nil, time.Minute)
	require.NoError(t, err)
	require.Equal(t, map[int64]int{7: 1, 8: 1, 9: 1}, storetest.ByCaller(due, caller), "one for each caller")
}

func byHost(posts []messages.Post) map[string]int {
	n := map[string]int{}
	for _, p := range posts {
		n[p.DestinationKey()]++
	}
	return n
}

// countBlocks is storetest.CountBlocks for the statement of the store that has this name. It rolls back the statement's changes.
func countBlocks(t *testing.T, conn *pgx.Conn, name, args string) int {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
	_, err = tx.Exec(t.Context(), `prepare `+name+` as `+storetest.Statements(t)[name])
	require.NoError(t, err)
	n := storetest.CountBlocks(t, tx, "execute "+name+args)
	_, err = tx.Exec(t.Context(), `deallocate `+name)
	require.NoError(t, err)
	t.Logf("%s: %d blocks", name, n)
	return n
}

func TestClaimIsFastWithManyHosts(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := storetest.OpenAt(t, url), storetest.ConnectWithSettingsOf(t, url, sandbox.Roles.Hot)
	endpoint := callbackEndpoint(t, db, 0)
	insertDueDeliveries(t, db, endpoint, 0, 1, hostNames(10_000)...)
	insertDuePosts(t, db, 0, 1, hostNames(10_000)...)
	for name, args := range map[string]string{
		"claimDeliveriesSQL": `(100, '{}', '{}', '{}', '{}', 16, 32, 32, 30, '{}')`, "nextWebhookSQL": "",
		"claimPostsSQL": `(100, '{}', '{}', 16, 32, 30)`, "nextPostSQL": "",
	} {
		require.Less(t, countBlocks(t, conn, name, args), 5000, name)
	}
	db.Exec(t, `update webhook_deliveries set next_at = next_at + interval '1 hour'; update message_live set next_at = next_at + interval '1 hour'`)
	insertDueDeliveries(t, db, endpoint, 0, 1, "due.example")
	insertDuePosts(t, db, 0, 1, "due.example")
	due := claimDeliveries(t, db)
	require.Len(t, due, 1)
	require.Equal(t, "due.example", due[0].Host, "the due delivery is found among 10000 that are not due yet")
	require.Equal(t, map[string]int{"0 due.example": 1}, byHost(claimPosts(t, db)))
}

func TestBacklogOfOneHostDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	endpoint := callbackEndpoint(t, db, 0)
	insertDueDeliveries(t, db, endpoint, 0, 1000, "slow.example")
	insertDuePosts(t, db, 0, 1000, "slow.example")
	deliveries, posts := claimDeliveries(t, db), claimPosts(t, db)
	require.Len(t, deliveries, 2)
	require.Len(t, posts, 2)
	insertDueDeliveries(t, db, endpoint, 0, 1, hostNames(2)...)
	insertDuePosts(t, db, 0, 1, hostNames(2)...)
	hosts := map[string]int{}
	for _, d := range claimDeliveries(t, db, deliveries...) {
		hosts[d.Host]++
	}
	require.Equal(t, map[string]int{"0.example": 1, "1.example": 1}, hosts)
	require.Equal(t, map[string]int{"0 0.example": 1, "0 1.example": 1}, byHost(claimPosts(t, db, posts...)))
}

// callbackEndpoint returns the id of the row of webhook_endpoints without a URL: the caller's callbacks belong to it.
func callbackEndpoint(t *testing.T, db *storetest.DB, caller int64) task.ID {
	t.Helper()
	_, err := db.Webhooks.SigningSecrets(t.Context(), []int64{caller}, storetest.FirstSecret)
	require.NoError(t, err)
	return storetest.Value[task.ID](t, db, `select id from webhook_endpoints where caller_id = $1 and url is null`, caller)
}

func TestRevokedCallersMessagesAreSentButNoEvents(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	e := db.MustAddEndpoint(t, 7, "https://gone.example")
	db.MustAddEndpoint(t, 8, "https://neighbour.example")
	s, other := submit(t, db, 7, storetest.WithCallback), submit(t, db, 8)
	require.Equal(t, 2, db.MustRecordEvent(t, s.ID, 1, "task.succeeded"))
	insertDuePosts(t, db, 7, 1, "shop.example")
	_, _, err := db.Callers.Revoke(t.Context(), 7, store.Operator{Name: "ops"})
	require.NoError(t, err)
	db.Exec(t, `update webhook_endpoints set enabled = true, disabled_reason = null, disabled_at = null where id = $1`, e.ID) // as a concurrent update could
	require.Zero(t, db.MustRecordEvent(t, s.ID, 2, "task.failed"), "later events are not recorded")
	require.Empty(t, claimDeliveries(t, db), "no delivery, neither to the endpoint nor to the callback")

	posts := claimPosts(t, db)
	require.Equal(t, map[string]int{"7 shop.example": 1}, byHost(posts), "accepted messages are still sent")
	_, err = db.Messages.SettlePosts(t.Context(), []messages.Posted{{Post: posts[0], Result: storetest.Accepted}})
	require.NoError(t, err)
	next, due, err := db.Webhooks.NextDelivery(t.Context())
	require.NoError(t, err)
	require.False(t, due, "the deliveries of the revoked caller are never due")
	require.Zero(t, next)
	require.Equal(t, 1, db.MustRecordEvent(t, other.ID, 1, "task.succeeded"))
	require.Len(t, claimDeliveries(t, db), 1, "other callers' deliveries are claimed")
}

func TestClaimLocksDeliveriesByID(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := storetest.OpenAt(t, url), storetest.ConnectWithSettingsOf(t, url, sandbox.Roles.Hot)
	endpoint := db.MustAddEndpoint(t, 7, "https://shop.example").ID
	insertDueDeliveries(t, db, endpoint, 7, 2000, "")
	db.Exec(t, `update webhook_deliveries set state = 2, next_at = null, finished_at = now()`)
	db.Exec(t, `analyze webhook_deliveries`) // so that Postgres estimates that no delivery is pending
	insertDueDeliveries(t, db, endpoint, 7, 100, "")
	_, err := conn.Exec(t.Context(), `prepare c as `+storetest.Statements(t)["claimDeliveriesSQL"]+`; set plan_cache_mode = force_generic_plan`)
	require.NoError(t, err)
	lines, err := store.QueryRows(t.Context(), conn, pgx.RowTo[string],
		`explain execute c(100, '{}', '{}', '{}', '{}', 16, 32, 32, 30, '{}')`, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	require.Regexp(t, `LockRows[^\n]*\n[^\n]*webhook_deliveries_id`, strings.Join(lines, "\n"), "the plan must not read all pending deliveries")
}

func TestResendFailedReadsFailedDeliveriesOnly(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := storetest.OpenAt(t, url), storetest.ConnectWithSettingsOf(t, url, sandbox.Roles.Hot)
	endpoint := db.MustAddEndpoint(t, 7, "https://shop.example").ID
	insertDueDeliveries(t, db, endpoint, 7, 5000, "")
	db.Exec(t, `update webhook_deliveries set state = 1, next_at = null, finished_at = now()`)
	insertDueDeliveries(t, db, endpoint, 7, 20, "")
	db.Exec(t, `update webhook_deliveries set state = 2, next_at = null, finished_at = now() where state = 0`)
	db.Exec(t, `vacuum analyze webhook_deliveries`)
	for _, scope := range []string{`null, null`, `7, '` + endpoint.String() + `'`} {
		require.Less(t, countBlocks(t, conn, "lockFailedSQL", `(now() - interval '1 hour', `+scope+`, 500)`), 200, scope)
	}
	for _, want := range []int{15, 5} {
		n, err := db.Webhooks.ResendFailed(t.Context(), webhooks.FailedFilter{Since: time.Now().Add(-time.Hour)}, 15, store.Operator{Name: "ops"})
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
}

// If the lease of a delivery ends before its result is stored, the same process can claim the delivery again. Then one call can
// have two results of one delivery.
func TestTwoTriesOfOneDeliveryAreBothRecorded(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	insertDueDeliveries(t, db, db.MustAddEndpoint(t, 7, "https://a.example").ID, 7, 1, "")
	first := claimDeliveries(t, db)[0]
	db.Exec(t, `update webhook_deliveries set next_at = now()`)
	second := claimDeliveries(t, db)[0]
	tried := append(withResponse(500, first), withResponse(503, second)...)
	settled, err := db.Webhooks.SettleDeliveries(t.Context(), tried, time.Hour)
	require.NoError(t, err)
	require.Equal(t, []int{1}, settled.Unsettled, "the second try is left for the next call")
	_, err = db.Webhooks.SettleDeliveries(t.Context(), tried[1:], time.Hour)
	require.NoError(t, err)
	require.Equal(t, 2, db.Count(t, `select tried from webhook_deliveries`))
	require.Equal(t, 2, db.Count(t, `select jsonb_array_length(tries) from webhook_deliveries`))
}
