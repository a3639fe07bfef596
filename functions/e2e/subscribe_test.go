package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const subscriptions = "/api/v1/subscribe/"

// booking is the order for the confirmation of a course booking, with more fields.
func booking(id any, more string) string {
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf(`{"template_id":"tmpl","template_type":"BOOKING_CONFIRM","business_type":"course_booking","business_id":%v,
		"receiver_user_id":"9007199254740993","receiver_openid":"openid","message_data":{"thing1":{"value":"瑜伽课"}}%s}`, id, more)
}

// recording is a booking that its service sends itself, as app.
func recording(id any, more string) string {
	return strings.Replace(booking(id, more), "{", `{"app_id":"app",`, 1)
}

// weChatSender is what sends the messages of queue wechat.
type weChatSender struct {
	t  *testing.T
	db *store.DB
}

func newWeChatSender(s *server) weChatSender {
	s.t.Helper()
	db, err := store.Open(store.Config{URL: s.owner.Config().ConnString(), Roles: store.Roles(sandbox.Roles)})
	require.NoError(s.t, err)
	s.t.Cleanup(db.Close)
	return weChatSender{s.t, db}
}

// send claims the only message that waits and reports what became of it.
func (w weChatSender) send(r task.Report) store.SubscribeSend {
	w.t.Helper()
	claimed, _, err := w.db.Claim(w.t.Context(), store.ClaimRequest{
		Queue: task.WeChatQueue, AppID: "wechat", Limit: 2, Lease: time.Minute, Request: []byte(`{}`), MarksSending: true,
	})
	require.NoError(w.t, err)
	require.Len(w.t, claimed, 1)
	id := claimed[0].ID
	sends, err := w.db.BeginSends(w.t.Context(), []task.ID{id})
	require.NoError(w.t, err)
	r.TaskID, r.AppID, r.ClaimID = id, "wechat", claimed[0].ClaimID
	outs, errs := w.db.Report([]*store.Report{{Request: []byte(`{}`), Report: r}})
	require.NoError(w.t, errs[0])
	require.Equal(w.t, task.Applied, outs[0].Verdict)
	return sends[id]
}

// orderMessage posts an order that must be taken.
func orderMessage(s *server, body string) reply {
	s.t.Helper()
	r := s.post(subscriptions+"send", body)
	require.Equal(s.t, 200, r.status, r.text)
	return r
}

// Scenario 1: a message is sent.
func TestScenario1ABookingMakesOneRowThatSaysSent(t *testing.T) {
	t.Parallel()
	s := serve(t)
	made := orderMessage(s, booking(123, ""))
	require.EqualValues(t, 0, made.data("send_status"))
	require.Equal(t, "pending", made.data("state"))
	require.Equal(t, fmt.Sprintf("%s%v", subscriptions, made.data("id")), made.header.Get("Location"))
	sent := newWeChatSender(s).send(task.Report{Outcome: task.SentOK})
	require.JSONEq(t, `{"thing1":{"value":"瑜伽课"}}`, string(sent.Data))

	require.Equal(t, 1, s.count(`select count(*) from subscribe_message_logs where business_type = 'course_booking' and business_id = 123`))
	require.Equal(t, 1, s.count(`select count(*) from subscribe_message_logs where send_status = 1`))
	name := "business_type=course_booking&business_id=123&template_type=BOOKING_CONFIRM&receiver_user_id=9007199254740993"
	require.Equal(t, true, s.get(subscriptions+"sent?"+name).data("sent"))
	row := s.get(made.header.Get("Location"))
	require.Equal(t, "123", row.data("business_id"))
	require.Equal(t, "9007199254740993", row.data("receiver_user_id"), "with all its digits")
}

// Scenario 2: a message is not sent twice.
func TestScenario2ARepeatAfterACrashIsSkippedAndTheLogSaysSo(t *testing.T) {
	t.Parallel()
	url, bin := sandbox.NewDatabase(t), binary(t)
	crashed := startProcess(t, bin, settings(url))
	s := (&server{t: t, url: address(t, crashed), user: "admin", password: "secret"}).connect(url)
	first := orderMessage(s, booking(123, ""))
	require.NoError(t, crashed.Kill())

	process := startProcess(t, bin, settings(url))
	s.url = address(t, process)
	const line = `"msg":"消息已发送过，跳过重复发送"`
	for _, state := range []string{"pending", "succeeded"} {
		if state == "succeeded" {
			newWeChatSender(s).send(task.Report{Outcome: task.SentOK})
		}
		again := orderMessage(s, booking(`"123"`, ""))
		require.Equal(t, true, again.data("skipped"))
		require.Equal(t, first.data("id"), again.data("id"))
		require.Equal(t, first.data("task_id"), again.data("task_id"))
		require.Equal(t, state, again.data("state"))
		require.NotContains(t, again.text, "data_differs")
	}
	require.Eventually(t, func() bool { return strings.Count(process.Output(), line) == 2 }, waitLimit, time.Millisecond, process.Output())
	require.Equal(t, true, orderMessage(s, strings.Replace(booking(123, ""), "瑜伽课", "茶", 1)).data("data_differs"))
	require.Equal(t, 1, s.count(`select count(*) from subscribe_message_logs`))
	require.Equal(t, 1, s.count(`select count(*) from tasks`))
}

// Scenario 3: a failed message is sent again.
func TestScenario3AMessageThatFailedIsSentAgainOnItsRow(t *testing.T) {
	t.Parallel()
	s := serve(t)
	sender := newWeChatSender(s)
	made := orderMessage(s, booking(123, ""))
	at := made.header.Get("Location")
	sender.send(task.Report{Outcome: task.SentFailed, ErrorCode: "43101", Message: "user refuse to accept the msg"})
	failed := s.get(at)
	require.EqualValues(t, 2, failed.data("send_status"))
	require.Equal(t, "43101", failed.data("error_code"))
	require.Equal(t, "user refuse to accept the msg", failed.data("error_message"))
	require.Len(t, s.get(subscriptions+"failures").data("items"), 1)

	again := orderMessage(s, strings.Replace(booking(123, `"lang":"zh_TW"`), "瑜伽课", "茶", 1))
	require.Equal(t, true, again.data("again"))
	require.Equal(t, made.data("id"), again.data("id"))
	require.NotEqual(t, made.data("task_id"), again.data("task_id"))
	require.Equal(t, task.SendFailedMessage, func() any {
		sender.send(task.Report{Outcome: task.SentFailed})
		return s.get(at).data("error_message")
	}(), "a failure without a message gets the default one")

	resent := s.post(at+"/resend", `{"reason":"the user allows messages again"}`)
	require.Equal(t, 200, resent.status, resent.text)
	sent := sender.send(task.Report{Outcome: task.SentOK})
	require.JSONEq(t, `{"thing1":{"value":"茶"}}`, string(sent.Data))
	require.Equal(t, "zh_TW", sent.Lang, "as it was ordered last")

	row := s.get(at)
	require.EqualValues(t, 1, row.data("send_status"))
	require.EqualValues(t, 2, row.data("retry_count"))
	sends := row.data("sends").([]any)
	require.Len(t, sends, 3)
	oldest := sends[2].(map[string]any)
	require.Equal(t, "failed", oldest["state"])
	require.Equal(t, "rejected", oldest["reason"])
	require.Equal(t, "43101", oldest["error_code"])
	require.Equal(t, map[string]any{"thing1": map[string]any{"value": "瑜伽课"}}, oldest["message_data"])
	require.Equal(t, 1, s.count(`select count(*) from subscribe_message_logs`))
	require.Equal(t, 1, s.count(`select count(*) from operator_actions where action = 'subscribe.resend' and reason <> ''`))
}

func TestOfManyOrdersForOneMessageAtOnceOneIsTakenOn(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const orders = 20
	answers := make([]reply, orders)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = s.post(subscriptions+"send", booking(1, "")) })
	}
	all.Wait()
	made := 0
	for _, a := range answers {
		require.Contains(t, []int{200, 409}, a.status, a.text)
		if a.status == 200 && !strings.Contains(a.text, "skipped") {
			made++
		}
	}
	require.Equal(t, 1, made)
	require.Equal(t, 1, s.count(`select count(*) from tasks`))
}

func TestAnOrderWakesWhoSendsToWeChat(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	env, h := environment(t, url)
	s := serveHandler(t, h).connect(url)
	waiter := env.RegisterWaiter(task.WeChatQueue)
	defer waiter.Close()
	orderMessage(s, booking(1, fmt.Sprintf(`"send_at":%q`, time.Now().Add(time.Hour).Format(time.RFC3339))))
	require.Equal(t, 200, s.post(subscriptions+"record", recording(2, "")).status)
	select {
	case <-waiter.C:
		t.Fatal("neither of them is to be claimed now")
	default:
	}
	orderMessage(s, booking(3, ""))
	select {
	case <-waiter.C:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was woken")
	}
}

func TestAMessageOfAnotherCallerIsSkippedAndNeitherSeenNorSentAgain(t *testing.T) {
	t.Parallel()
	s := serve(t)
	sender := newWeChatSender(s)
	ann, bob := s.caller("ann", "submitter"), s.caller("bob", "submitter")
	first := orderMessage(ann, booking(1, ""))
	at := first.header.Get("Location")
	require.Equal(t, first.data("id"), orderMessage(bob, booking(1, "")).data("id"))
	require.Equal(t, 200, ann.get(at).status)
	require.Equal(t, 200, s.get(at).status, "an admin sees all")
	require.Equal(t, 404, bob.get(at).status)
	require.Equal(t, 404, bob.post(at+"/status", `{"app_id":"app","claim_id":1,"send_status":1}`).status)
	sender.send(task.Report{Outcome: task.SentFailed})

	const logs = subscriptions + "logs?business_type=course_booking&business_id=1"
	for path, items := range map[string]int{logs: 1, subscriptions + "failures": 1, subscriptions + "statistics": 1} {
		require.Len(t, ann.get(path).data("items"), items, path)
		require.Len(t, s.get(path).data("items"), items, path)
		require.Empty(t, bob.get(path).data("items"), path)
	}
	refused := bob.post(subscriptions+"send", booking(1, ""))
	require.Equal(t, 403, refused.status)
	require.Contains(t, refused.text, "another caller ordered this message")
	require.Equal(t, true, orderMessage(s, booking(1, "")).data("again"), "an admin may")
	sender.send(task.Report{Outcome: task.SentOK})
	name := "business_type=course_booking&business_id=1&template_type=BOOKING_CONFIRM&receiver_user_id=9007199254740993"
	require.Equal(t, true, bob.get(subscriptions+"sent?"+name).data("sent"), "bob must not send it himself")
	bound := s.caller("bound", "submitter", "default")
	require.Equal(t, 403, bound.post(subscriptions+"send", booking(2, "")).status)
}

func TestAMessageThatMayHaveBeenDeliveredIsHeldUnlessItsOrderSaysOtherwise(t *testing.T) {
	t.Parallel()
	s := serve(t)
	sender := newWeChatSender(s)
	orderMessage(s, booking(1, ""))
	sender.send(task.Report{Outcome: task.SentUnknown})
	held := orderMessage(s, booking(1, ""))
	require.Equal(t, true, held.data("skipped"))
	require.Equal(t, "held", held.data("state"))
	require.EqualValues(t, 0, held.data("send_status"))
	resolved := s.post(fmt.Sprintf("/api/v1/admin/tasks/%v/resolve", held.data("task_id")), `{"outcome":"failed","reason":"the user has not got it"}`)
	require.Equal(t, 200, resolved.status, resolved.text)
	require.Equal(t, true, orderMessage(s, booking(1, "")).data("again"))
	sender.send(task.Report{Outcome: task.SentOK})

	orderMessage(s, booking(2, `"on_unknown":"resend"`))
	sender.send(task.Report{Outcome: task.SentUnknown})
	require.True(t, sender.send(task.Report{Outcome: task.SentOK}).Doubtful, "it is sent again at once")
	orderMessage(s, booking(3, `"on_unknown":"fail"`))
	sender.send(task.Report{Outcome: task.SentUnknown})
	require.Equal(t, 1, s.count(`select count(*) from subscribe_message_logs where business_id = 3 and send_status = 2`))
}

func TestARecordedMessageBelongsToItsNewestClaim(t *testing.T) {
	t.Parallel()
	s := serve(t)
	record := func(more string) reply {
		r := s.post(subscriptions+"record", recording(1, more))
		require.Equal(t, 200, r.status, r.text)
		return r
	}
	silent := record(`"lease_seconds":10,"on_unknown":"resend"`)
	status := silent.header.Get("Location") + "/status"
	report := func(claim any, what string) reply {
		return s.post(status, fmt.Sprintf(`{"app_id":"app","claim_id":%v,%s}`, claim, what))
	}
	require.Equal(t, "processing", silent.data("state"))
	other := record("")
	require.Equal(t, true, other.data("skipped"))
	require.Nil(t, other.data("claim_id"))
	longer := report(silent.data("claim_id"), `"send_status":0,"lease_seconds":600`)
	require.Equal(t, 200, longer.status, longer.text)
	require.Greater(t, longer.data("lease_until"), silent.data("lease_until"))
	s.exec(`update task_live set due_at = now()`)
	_, err := newWeChatSender(s).db.Sweep(t.Context(), 10)
	require.NoError(t, err)

	newer := record("")
	require.Equal(t, true, newer.data("again"))
	for _, what := range []string{`"send_status":1`, `"send_status":2`, `"send_status":0`, `"outcome":"unknown"`} {
		late := report(silent.data("claim_id"), what)
		require.Equal(t, 409, late.status, late.text)
		require.Equal(t, "stale_claim", late.body["error"])
	}
	failed := report(newer.data("claim_id"), fmt.Sprintf(`"send_status":2,"error_message":%q,"should_retry":true`, strings.Repeat("长", 9000)))
	require.Equal(t, 200, failed.status, failed.text)
	require.EqualValues(t, 2, failed.data("send_status"))
	require.Equal(t, "pending", failed.data("state"))
	require.Equal(t, true, report(newer.data("claim_id"), `"send_status":2`).data("already"))
	row := s.get(silent.header.Get("Location"))
	require.Equal(t, strings.Repeat("长", 500), row.data("error_message"))
	require.Equal(t, task.SendFailedCode, row.data("error_code"))
	require.EqualValues(t, 2, row.data("retry_count"), "one for the silence and one for the failure")

	last := record("")
	require.EqualValues(t, 1, report(last.data("claim_id"), `"send_status":1`).data("send_status"))
	require.EqualValues(t, 2, s.get(silent.header.Get("Location")).data("retry_count"))
	require.Equal(t, true, record("").data("skipped"))
	conflict := s.post(orderMessage(s, booking(2, "")).header.Get("Location")+"/status", `{"app_id":"app","claim_id":1,"send_status":1}`)
	require.Equal(t, 409, conflict.status)
	require.Contains(t, conflict.text, "was not recorded")
}

// What fell silent has sent after all, and says so when another has the message.
func TestALateSuccessOfAnEarlierRecordCountsForTheMessage(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(s *server){
		"recorded once more": func(s *server) { s.post(subscriptions+"record", recording(1, "")) },
		"left to wechat":     func(s *server) { orderMessage(s, booking(1, "")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			silent := s.post(subscriptions+"record", recording(1, `"on_unknown":"fail"`))
			s.exec(`update task_live set due_at = now()`)
			_, err := newWeChatSender(s).db.Sweep(t.Context(), 10)
			require.NoError(t, err)
			next(s)
			require.Equal(t, 1, s.count(`select count(*) from task_live`))

			status := silent.header.Get("Location") + "/status"
			late := fmt.Sprintf(`{"app_id":"app","claim_id":%v,"send_status":`, silent.data("claim_id"))
			require.Equal(t, 409, s.post(status, late+`2}`).status)
			require.Equal(t, 409, s.post(status, late+`0}`).status)
			settled := s.post(status, late+`1}`)
			require.Equal(t, 200, settled.status, settled.text)
			require.Equal(t, silent.data("task_id"), settled.data("task_id"))
			require.EqualValues(t, 1, settled.data("send_status"))
			require.Equal(t, true, s.post(subscriptions+"record", recording(1, "")).data("skipped"))
		})
	}
}

func TestARecordedMessageOfASilentServiceIsHeld(t *testing.T) {
	t.Parallel()
	s := serve(t)
	silent := s.post(subscriptions+"record", recording(1, ""))
	s.exec(`update task_live set due_at = now()`)
	_, err := newWeChatSender(s).db.Sweep(t.Context(), 10)
	require.NoError(t, err)
	skipped := s.post(subscriptions+"record", recording(1, ""))
	require.Equal(t, true, skipped.data("skipped"))
	require.Equal(t, "held", skipped.data("state"))
	late := s.post(silent.header.Get("Location")+"/status", fmt.Sprintf(`{"app_id":"app","claim_id":%v,"send_status":1}`, silent.data("claim_id")))
	require.EqualValues(t, 1, late.data("send_status"), late.text)
}

func TestWhoeverOrderedASubscribeMessageIsToldWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	shop := newReceiver(t, nil)
	order := api.SubscribeRequest{
		TemplateID: "tmpl", TemplateType: "BOOKING_CONFIRM", BusinessType: "course_booking", BusinessID: api.NumberOf(1), ReceiverUserID: api.NumberOf(9),
		ReceiverOpenID: "openid", MessageData: api.JSON(`{"thing1":{"value":"瑜伽课"}}`), CallbackURL: shop.URL,
	}
	recorded, err := w.client.RecordSubscribe(t.Context(), api.SubscribeRecordRequest{SubscribeRequest: order, AppID: "app"})
	require.NoError(t, err)
	sent := 1
	settled, err := w.client.SubscribeStatus(t.Context(), recorded.ID, api.SubscribeStatusRequest{AppID: "app", ClaimID: recorded.ClaimID, SendStatus: &sent})
	require.NoError(t, err)
	require.Equal(t, 1, settled.SendStatus)
	again, err := w.client.Subscribe(t.Context(), order)
	require.NoError(t, err)
	require.True(t, again.Skipped)
	require.Equal(t, recorded.ID, again.ID)

	signing, err := w.client.SigningSecret(t.Context())
	require.NoError(t, err)
	told := shop.event(t, 1, signing.Secret)
	require.Equal(t, recorded.TaskID, told.Subject)
	require.Equal(t, "sendonce.task.succeeded.v1", told.Type)
	var data api.TaskEventData
	require.NoError(t, json.Unmarshal(told.Data, &data))
	require.JSONEq(t, fmt.Sprintf(`{"subscribe_id":"%d"}`, recorded.ID), string(data.Metadata))
}
