package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestTasksAreFilteredAndShown(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	plus := s.submit(func(s *tasks.Submission) { s.Phone, s.Source, s.CallerID = "+8613900139000", "crm", 9 })
	other := s.submit(nil)
	require.Equal(t, plus, s.claimAndReport(task.SentFailed))
	c := s.claim()

	list := func(query string) (ids []string) {
		for _, item := range mustCall[api.Page[api.AdminTask]](s, "GET", "tasks?"+query, "").Items {
			ids = append(ids, item.TaskID)
		}
		return ids
	}
	require.Equal(t, []string{other.String(), plus.String()}, list(""))
	for _, query := range []string{"state=failed", "reason=rejected", "phone_number=%2B8613900139000", "source=crm", "caller_id=9", "after=" + other.String(),
		"state=failed&reason=rejected&phone_number=%2B8613900139000&source=crm&queue=default&caller_id=9&from=2020-01-01T00:00:00Z&limit=200"} {
		require.Equal(t, []string{plus.String()}, list(query), query)
	}
	require.Empty(t, list("to=2020-01-01T00:00:00Z"))
	page := mustCall[api.Page[api.AdminTask]](s, "GET", "tasks?limit=1", "")
	require.Equal(t, other.String(), page.NextAfter)
	require.Equal(t, "app", page.Items[0].AppID)
	require.EqualValues(t, c.ClaimID, page.Items[0].ClaimID)
	require.WithinDuration(t, c.LeaseUntil, *page.Items[0].LeaseUntil, time.Millisecond)

	one := mustCall[api.AdminTaskResponse](s, "GET", "tasks/"+plus.String(), "")
	require.Equal(t, "rejected", one.Task.Reason)
	require.EqualValues(t, int64(9), one.Task.CallerID)
	require.Nil(t, one.Task.LeaseUntil)
	var events []string
	for _, e := range one.Timeline {
		events = append(events, e.Event)
	}
	require.Equal(t, []string{"received", "claimed", "report"}, events)
	require.Equal(t, "192.0.2.7", one.Timeline[0].SourceIP)
	require.Equal(t, "no signal", one.Timeline[2].Message)
	s.requireError(404, "not_found", nil, "GET", "tasks/"+task.NewID().String(), "")

	s.requireError(400, "invalid_request", []string{"state", "reason", "phone_number", "source", "queue", "caller_id", "to", "limit", "after", "nonsense"}, "GET",
		"tasks?state=done&reason=bad&phone_number=%2B&queue=a%20b&caller_id=-1&from=2024-01-02T00:00:00Z&to=2024-01-01T00:00:00Z&limit=201&after=5&nonsense=1&source="+strings.Repeat("x", 51), "")
	s.requireError(400, "invalid_request", []string{"reason"}, "GET", "tasks?state=pending&reason=timeout", "")
}

func TestOperatorRetriesCancelsAndResolvesTasks(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.submit(nil)
	id := s.claimAndReport(task.SentFailed)
	at := "tasks/" + id.String()
	waiter := s.env.RegisterWaiter(task.DefaultQueue)
	defer waiter.Close()
	require.Equal(t, "pending", mustCall[api.RepairResponse](s, "POST", at+"/retry", `{"reason":"tower is back"}`).State)
	select {
	case <-waiter.C:
	default:
		t.Fatal("the waiting claim was not woken")
	}
	s.requireError(409, "conflict", nil, "POST", at+"/retry", "")
	require.Equal(t, "cancelled", mustCall[api.RepairResponse](s, "POST", at+"/cancel", `{"reason":"asked to"}`).Reason)
	actions := mustCall[api.Page[api.ActionResponse]](s, "GET", "actions?subject="+id.String(), "").Items
	require.Equal(t, []string{"task.cancel", "task.retry"}, []string{actions[0].Action, actions[1].Action})
	require.Equal(t, "asked to", actions[0].Reason)
	require.Equal(t, "tower is back", actions[1].Reason)
	require.Equal(t, "admin", actions[0].CallerName)
	require.JSONEq(t, `{"state":"pending","reason":"","retry_count":0,"result":"no signal"}`, string(actions[0].Before))

	for outcome, state := range map[string]string{"succeeded": "succeeded", "failed": "failed", "resend": "pending"} {
		id := s.submit(func(s *tasks.Submission) { s.OnUnknown, s.Priority = task.Hold, 0 })
		require.Equal(t, id, s.claimAndReport(task.SentUnknown))
		body := fmt.Sprintf(`{"outcome":%q,"reason":"asked the carrier"}`, outcome)
		got := mustCall[api.RepairResponse](s, "POST", "tasks/"+id.String()+"/resolve", body)
		require.Equal(t, state, got.State)
		require.Equal(t, "asked the carrier", got.Result)
		s.requireError(409, "conflict", nil, "POST", "tasks/"+id.String()+"/resolve", body)
		if state == "pending" {
			mustCall[api.RepairResponse](s, "POST", "tasks/"+id.String()+"/cancel", "")
		}
	}
	s.requireError(400, "invalid_request", []string{"outcome", "reason"}, "POST", at+"/resolve", `{"outcome":"maybe"}`)
	s.requireError(404, "not_found", nil, "POST", "tasks/"+task.NewID().String()+"/retry", "")
}

func TestViewersSeeOnlyTheHostOfTheCallbackURL(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, viewer := s.NewCaller("shop", "submitter"), s.NewCaller("viewer", "viewer")
	sent := shop.Post(cluster.SMSPath+"send", `{"phone_number":"13800138000","content":"hi","callback_url":"https://shop.example/SECRETMARK"}`).RequireOK()
	for _, path := range []string{cluster.AdminPath + "tasks", cluster.AdminPath + "tasks/" + sent.Data("task_id").(string)} {
		require.Contains(t, s.Get(path).Text, "SECRETMARK", path)
		require.Contains(t, shop.Get(path).Text, "SECRETMARK", path)
		got := viewer.Get(path)
		require.Contains(t, got.Text, `"callback_url":"https://shop.example/****"`, path)
		require.NotContains(t, got.Text, "SECRETMARK", path)
	}
}
