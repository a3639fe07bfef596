package subscribe_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// Scenario 1 of the original subscribe message service: a message is sent.
func TestScenario1SentMessageHasOneRow(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	first := s.Subscribe(cluster.Booking(123, ""))
	require.EqualValues(t, 0, first.Data("send_status"))
	require.Equal(t, "pending", first.Data("state"))
	require.Equal(t, fmt.Sprintf("%s%v", cluster.SubscribePath, first.Data("id")), first.Header.Get("Location"))
	sent := s.NewWeChatSender().Send(task.Report{Outcome: task.SentOK})
	require.JSONEq(t, `{"thing1":{"value":"瑜伽课"}}`, string(sent.Data))

	require.Equal(t, 1, s.Count(`select count(*) from subscribe_message_logs where business_type = 'course_booking' and business_id = 123`))
	require.Equal(t, 1, s.Count(`select count(*) from subscribe_message_logs where send_status = 1`))
	require.Equal(t, true, s.Get(sentBooking+"123").Data("sent"))
	row := s.Get(first.Header.Get("Location"))
	require.Equal(t, "123", row.Data("business_id"))
	require.Equal(t, "9007199254740993", row.Data("receiver_user_id"), "all digits are kept")
}

// Scenario 2: a message is not sent twice.
func TestScenario2RepeatAfterCrashIsSkipped(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	before, crashed := cluster.StartServer(t, url)
	first := before.Subscribe(cluster.Booking(123, ""))
	require.NoError(t, crashed.Kill())

	s, process := cluster.StartServer(t, url)
	const line = `"msg":"消息已发送过，跳过重复发送"`
	for _, state := range []string{"pending", "succeeded"} {
		if state == "succeeded" {
			s.NewWeChatSender().Send(task.Report{Outcome: task.SentOK})
		}
		again := s.Subscribe(cluster.Booking(`"123"`, ""))
		require.Equal(t, true, again.Data("skipped"))
		require.Equal(t, first.Data("id"), again.Data("id"))
		require.Equal(t, first.Data("task_id"), again.Data("task_id"))
		require.Equal(t, state, again.Data("state"))
		require.NotContains(t, again.Text, "data_differs")
	}
	cluster.Eventually(t, func() bool { return strings.Count(process.Output(), line) == 2 }, process.Output())
	require.Equal(t, true, s.Subscribe(strings.Replace(cluster.Booking(123, ""), "瑜伽课", "茶", 1)).Data("data_differs"))
	require.Equal(t, 1, s.Count(`select count(*) from subscribe_message_logs`))
	require.Equal(t, 1, s.Count(`select count(*) from tasks`))
}

// Scenario 3: a failed message is sent again.
func TestScenario3FailedMessageIsSentAgain(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	sender := s.NewWeChatSender()
	first := s.Subscribe(cluster.Booking(123, ""))
	at := first.Header.Get("Location")
	sender.Send(task.Report{Outcome: task.SentFailed, ErrorCode: "43101", Message: "user refuse to accept the msg"})
	failed := s.Get(at)
	require.EqualValues(t, 2, failed.Data("send_status"))
	require.Equal(t, "43101", failed.Data("error_code"))
	require.Equal(t, "user refuse to accept the msg", failed.Data("error_message"))
	require.Len(t, s.Get(cluster.SubscribePath+"failures").Data("items"), 1)

	again := s.Subscribe(strings.Replace(cluster.Booking(123, `"lang":"zh_TW"`), "瑜伽课", "茶", 1))
	require.Equal(t, true, again.Data("again"))
	require.Equal(t, first.Data("id"), again.Data("id"))
	require.NotEqual(t, first.Data("task_id"), again.Data("task_id"))
	sender.Send(task.Report{Outcome: task.SentFailed})
	require.Equal(t, task.SendFailedMessage, s.Get(at).Data("error_message"), "a failure without a message gets the default one")

	s.Post(at+"/resend", `{"reason":"the user allows messages again"}`).RequireOK()
	sent := sender.Send(task.Report{Outcome: task.SentOK})
	require.JSONEq(t, `{"thing1":{"value":"茶"}}`, string(sent.Data))
	require.Equal(t, "zh_TW", sent.Lang, "as in the newest submission")

	row := s.Get(at)
	require.EqualValues(t, 1, row.Data("send_status"))
	require.EqualValues(t, 2, row.Data("retry_count"))
	sends := row.Data("sends").([]any)
	require.Len(t, sends, 3)
	oldest := sends[2].(map[string]any)
	require.Equal(t, "failed", oldest["state"])
	require.Equal(t, "rejected", oldest["reason"])
	require.Equal(t, "43101", oldest["error_code"])
	require.Equal(t, map[string]any{"thing1": map[string]any{"value": "瑜伽课"}}, oldest["message_data"])
	require.Equal(t, 1, s.Count(`select count(*) from subscribe_message_logs`))
	require.Equal(t, 1, s.Count(`select count(*) from operator_actions where action = 'subscribe.resend' and reason <> ''`))

	s.Exec(`delete from task_done where id = $1`, oldest["task_id"])
	s.Exec(`delete from tasks where id = $1`, oldest["task_id"])
	sends = s.Get(at).RequireOK().Data("sends").([]any)
	require.Equal(t, "succeeded", sends[0].(map[string]any)["state"])
	require.NotContains(t, sends[2], "state", "its task was deleted")
}

func TestSubscribeRequestWakesWeChat(t *testing.T) {
	t.Parallel()
	env, h := cluster.NewEnv(t, sandbox.NewDatabase(t))
	s := cluster.ServeHandler(t, h)
	waiter := env.RegisterWaiter(task.WeChatQueue)
	defer waiter.Close()
	s.Subscribe(cluster.Booking(1, fmt.Sprintf(`"send_at":%q`, time.Now().Add(time.Hour).Format(time.RFC3339))))
	s.Post(cluster.SubscribePath+"record", cluster.Recording(2, "")).RequireOK()
	select {
	case <-waiter.C:
		t.Fatal("woken for a scheduled or recorded message")
	default:
	}
	s.Subscribe(cluster.Booking(3, ""))
	cluster.Within(t, 10*time.Second, waiter.C, "the wake-up of wechat")
}

func TestMessageOfAnotherCallerIsSkippedAndHidden(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	sender := s.NewWeChatSender()
	ann, bob := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "submitter")
	first := ann.Subscribe(cluster.Booking(1, ""))
	at := first.Header.Get("Location")
	differs := strings.Replace(cluster.Booking(1, ""), "瑜伽课", "茶", 1)
	require.Equal(t, true, ann.Subscribe(differs).Data("data_differs"))
	skipped := bob.Subscribe(differs)
	require.Equal(t, []any{first.Data("id"), true, nil}, []any{skipped.Data("id"), skipped.Data("skipped"), skipped.Data("data_differs")}, "no data_differs: otherwise bob could guess the data")
	require.Equal(t, false, bob.Get(sentBooking+"1").Data("sent"))
	require.Equal(t, 200, s.Get(at).Status, "an admin sees all")
	require.Equal(t, 404, bob.Get(at).Status)
	require.Equal(t, 404, bob.Post(at+"/status", `{"app_id":"app","claim_id":1,"send_status":1}`).Status)
	sender.Send(task.Report{Outcome: task.SentFailed})

	const logs = cluster.SubscribePath + "logs?business_type=course_booking&business_id=1"
	for path, items := range map[string]int{logs: 1, cluster.SubscribePath + "failures": 1, cluster.SubscribePath + "statistics": 1} {
		require.Len(t, ann.Get(path).Data("items"), items, path)
		require.Len(t, s.Get(path).Data("items"), items, path)
		require.Empty(t, bob.Get(path).Data("items"), path)
	}
	refused := bob.Post(cluster.SubscribePath+"send", differs)
	require.Equal(t, 403, refused.Status, "bob must not replace the data")
	require.Contains(t, refused.Text, "another caller submitted this message")
	require.Contains(t, ann.Get(at).RequireOK().Text, "瑜伽课")
	require.Equal(t, true, s.Subscribe(differs).Data("again"), "an admin may replace the data")
	sender.Send(task.Report{Outcome: task.SentOK})
	require.Equal(t, true, bob.Get(sentBooking+"1").Data("sent"), "bob must not send it himself")
	otherQueue := s.NewCaller("other-queue", "submitter", "default")
	require.Equal(t, 403, otherQueue.Post(cluster.SubscribePath+"send", cluster.Booking(2, "")).Status)
}

func TestOnUnknownHoldsMessageByDefault(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	sender := s.NewWeChatSender()
	s.Subscribe(cluster.Booking(1, ""))
	sender.Send(task.Report{Outcome: task.SentUnknown})
	held := s.Subscribe(cluster.Booking(1, ""))
	require.Equal(t, true, held.Data("skipped"))
	require.Equal(t, "held", held.Data("state"))
	require.EqualValues(t, 0, held.Data("send_status"))
	s.Post(fmt.Sprintf("/api/v1/admin/tasks/%v/resolve", held.Data("task_id")), `{"outcome":"failed","reason":"the user has not got it"}`).RequireOK()
	require.Equal(t, true, s.Subscribe(cluster.Booking(1, "")).Data("again"))
	sender.Send(task.Report{Outcome: task.SentOK})

	s.Subscribe(cluster.Booking(2, `"on_unknown":"resend"`))
	sender.Send(task.Report{Outcome: task.SentUnknown})
	require.True(t, sender.Send(task.Report{Outcome: task.SentOK}).MayHaveBeenSent, "it is sent again at once")
	s.Subscribe(cluster.Booking(3, `"on_unknown":"fail"`))
	sender.Send(task.Report{Outcome: task.SentUnknown})
	require.Equal(t, 1, s.Count(`select count(*) from subscribe_message_logs where business_id = 3 and send_status = 2`))
}

func TestOnlyNewestClaimMayReportRecordedMessage(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	record := func(fields string) cluster.Reply {
		return s.Post(cluster.SubscribePath+"record", cluster.Recording(1, fields)).RequireOK()
	}
	expired := record(`"lease_seconds":10,"on_unknown":"resend"`)
	status := expired.Header.Get("Location") + "/status"
	report := func(claim any, fields string) cluster.Reply {
		return s.Post(status, fmt.Sprintf(`{"app_id":"app","claim_id":%v,%s}`, claim, fields))
	}
	require.Equal(t, "processing", expired.Data("state"))
	repeat := record("")
	require.Equal(t, true, repeat.Data("skipped"))
	require.Nil(t, repeat.Data("claim_id"))
	longer := report(expired.Data("claim_id"), `"send_status":0,"lease_seconds":600`).RequireOK()
	require.Greater(t, longer.Data("lease_until"), expired.Data("lease_until"))
	s.Exec(`update task_live set due_at = now()`)
	_, err := s.NewWeChatSender().DB.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)

	newer := record("")
	require.Equal(t, true, newer.Data("again"))
	for _, fields := range []string{`"send_status":1`, `"send_status":2`, `"send_status":0`, `"outcome":"unknown"`} {
		late := report(expired.Data("claim_id"), fields)
		require.Equal(t, 409, late.Status, late.Text)
		require.Equal(t, "stale_claim", late.Body["error"])
	}
	failed := report(newer.Data("claim_id"), fmt.Sprintf(`"send_status":2,"error_message":%q,"should_retry":true`, strings.Repeat("长", 9000))).RequireOK()
	require.EqualValues(t, 2, failed.Data("send_status"))
	require.Equal(t, "pending", failed.Data("state"))
	require.Equal(t, true, report(newer.Data("claim_id"), `"send_status":2`).Data("already"))
	row := s.Get(expired.Header.Get("Location"))
	require.Equal(t, strings.Repeat("长", 500), row.Data("error_message"))
	require.Equal(t, task.SendFailedCode, row.Data("error_code"))
	require.EqualValues(t, 2, row.Data("retry_count"), "one for the expired lease and one for the failure")

	last := record("")
	require.EqualValues(t, 1, report(last.Data("claim_id"), `"send_status":1`).Data("send_status"))
	require.EqualValues(t, 2, s.Get(expired.Header.Get("Location")).Data("retry_count"))
	require.Equal(t, true, record("").Data("skipped"))
	conflict := s.Post(s.Subscribe(cluster.Booking(2, "")).Header.Get("Location")+"/status", `{"app_id":"app","claim_id":1,"send_status":1}`)
	require.Equal(t, 409, conflict.Status)
	require.Contains(t, conflict.Text, "was not recorded")
}

func TestSubscribeOutcomeIsSentToCallbackURL(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	shop := cluster.NewReceiver(t, nil)
	request := api.SubscribeRequest{
		TemplateID: "tmpl", TemplateType: "BOOKING_CONFIRM", BusinessType: "course_booking", BusinessID: api.NumberOf(1), ReceiverUserID: api.NumberOf(9),
		ReceiverOpenID: "openid", MessageData: api.JSON(`{"thing1":{"value":"瑜伽课"}}`), CallbackURL: shop.URL,
	}
	recorded, err := w.Client.RecordSubscribe(t.Context(), api.SubscribeRecordRequest{SubscribeRequest: request, AppID: "app"})
	require.NoError(t, err)
	sent := 1
	settled, err := w.Client.SubscribeStatus(t.Context(), recorded.ID, api.SubscribeStatusRequest{AppID: "app", ClaimID: recorded.ClaimID, SendStatus: &sent})
	require.NoError(t, err)
	require.Equal(t, 1, settled.SendStatus)
	again, err := w.Client.Subscribe(t.Context(), request)
	require.NoError(t, err)
	require.True(t, again.Skipped)
	require.Equal(t, recorded.ID, again.ID)

	signing, err := w.Client.SigningSecret(t.Context())
	require.NoError(t, err)
	event := shop.Event(t, 1, signing.Secret)
	require.Equal(t, recorded.TaskID, event.Subject)
	require.Equal(t, "sendonce.task.succeeded.v1", event.Type)
	var data api.TaskEventData
	require.NoError(t, json.Unmarshal(event.Data, &data))
	require.JSONEq(t, fmt.Sprintf(`{"subscribe_id":"%d"}`, recorded.ID), string(data.Metadata))
}

func TestSubscribeMessagesAreListedByFilters(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, bank, viewer := s.NewCaller("shop", "submitter"), s.NewCaller("bank", "submitter"), s.NewCaller("viewer", "viewer")
	first := shop.Subscribe(cluster.Booking(1, "")).Data("id")
	second := shop.Subscribe(cluster.Booking(2, "")).Data("id")
	theirs := bank.Subscribe(cluster.Booking(3, "")).Data("id")
	s.Exec(`update subscribe_message_logs set send_status = 2, send_time = now() - interval '2 days', template_type = 'OTHER' where id = $1::text::bigint`, first)
	list := func(caller *cluster.Client, query string) []any {
		t.Helper()
		return caller.Get(cluster.SubscribePath + "messages?" + query).Values("id")
	}
	require.Equal(t, []any{second, first}, list(shop, ""), "newest first")
	require.Equal(t, []any{theirs, second, first}, list(viewer, ""))
	require.Equal(t, []any{theirs, second, first}, list(s, ""))
	for query, want := range map[string][]any{
		"send_status=2": {first}, "template_type=OTHER": {first}, "template_id=tmpl": {second, first}, "business_type=x": nil, "receiver_user_id=9007199254740993": {second, first},
		"receiver_user_id=7": nil, "from=" + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339): {second}, "to=" + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339): {first},
	} {
		require.Equal(t, want, list(shop, query), query)
	}
	require.Equal(t, []any{second, first}, shop.Pages(cluster.SubscribePath+"messages?", "id"))
	require.Equal(t, 403, shop.Get(cluster.SubscribePath+"messages?caller_id=0").Status)
	require.ElementsMatch(t, []string{"send_status", "to", "receiver_user_id", "after"}, shop.Get(cluster.SubscribePath+"messages?send_status=3&from=2024-01-02T00:00:00Z&to=2024-01-01T00:00:00Z&receiver_user_id=x&after=x").Fields())

	for _, path := range []string{fmt.Sprint(theirs), "statistics", "failures", "logs?business_type=course_booking&business_id=3"} {
		require.Equal(t, 200, viewer.Get(cluster.SubscribePath+path).Status, path)
	}
	require.EqualValues(t, 3, viewer.Get(cluster.SubscribePath+"statistics").Data("total"))
	require.Equal(t, 403, viewer.Post(cluster.SubscribePath+fmt.Sprint(theirs)+"/resend", "").Status)
	queueViewer := s.NewCaller("queue-viewer", "viewer")
	s.Exec(`update callers set queues = '{promo}' where name = 'queue-viewer'`)
	require.Empty(t, list(queueViewer, ""))
	require.Equal(t, 404, queueViewer.Get(cluster.SubscribePath+fmt.Sprint(theirs)).Status)
}
