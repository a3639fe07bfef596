package messages_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

func confirmMessage(s *cluster.Client, id, body string) cluster.Reply {
	return s.Post(cluster.MessagesPath+"/"+id+"/received", body)
}

// markRead moves the read cursor in the conversation with the built-in admin, and returns the status.
func markRead(as *cluster.Client, upTo string) int {
	return as.Post(cluster.MessagesPath+"/read", fmt.Sprintf(`{"between":"admin,%s","up_to":%q}`, as.User, upTo)).Status
}

// confirmableRows selects the messages and receipts, which a confirmation changes.
const confirmableRows = `select concat(
	(select string_agg(concat_ws(' ', id, status, remaining_sends), ';' order by id) from reliable_messages),
	(select string_agg(concat_ws(' ', message_id, consumer), ';' order by message_id, consumer) from message_receipts))`

func TestOnlyReceiversAndAdminsConfirmAMessage(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	admin := w.Admin
	shop := admin.NewCaller("shop", "submitter")
	points, bob := admin.NewMessageReceiver("points", "msg.orders.>", "ordres.>"), admin.NewMessageReceiver("bob")
	eve := admin.NewMessageReceiver("eve", "msg.bills.>")
	web := cluster.NewReceiver(t, nil)
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	deadURL := fmt.Sprintf("http://127.0.0.1:%d/", port)

	shopID := admin.Count(`select id from callers where name = 'shop'`)
	submit := func(key, fields string) string {
		saved := shop.Post(cluster.MessagesPath, fmt.Sprintf(`{"client_msg_id":%q,"data":1,%s}`, key, fields)).RequireOK()
		computed := task.ID(message.ID(int64(shopID), "shop", key)).String()
		require.Equal(t, computed, saved.Data("server_msg_id"), "anybody can compute the id")
		return computed
	}
	ids := map[string]string{
		"a subject":                submit("1", `"to":"msg.orders.paid","expected_receipts":2`),
		"a subject, confirm false": submit("2", `"to":"msg.orders.paid","confirm":false`),
		"a user":                   submit("3", `"to":"user:bob"`),
		"a dead URL":               submit("4", fmt.Sprintf(`"to":%q`, deadURL)),
		"a dead URL, confirm true": submit("5", fmt.Sprintf(`"to":%q,"confirm":true`, deadURL)),
		"a URL":                    submit("6", fmt.Sprintf(`"to":%q,"confirm":true`, web.URL)),
		"a subject of no stream":   submit("7", `"to":"ordres.late"`),
		"a subject of no stream, sends exhausted": submit("8", `"to":"ordres.never","max_sends":1`),
	}
	admin.WaitCount(len(ids), `select count(*) from (select send_no from message_live union all select send_no from message_done) m where send_no = 1`)
	var delivered map[string]any
	require.NoError(t, json.Unmarshal(web.Bodies[0], &delivered))
	require.Equal(t, ids["a URL"], delivered["id"])
	token := delivered["confirmtoken"].(string)
	require.Len(t, token, 43)

	before := admin.QueryText(confirmableRows)
	unknown := confirmMessage(eve, task.NewID().String(), `{}`)
	require.Equal(t, 404, unknown.Status)
	requireLikeUnknown := func(name string, got cluster.Reply) {
		delete(got.Body, "request_id")
		delete(unknown.Body, "request_id")
		require.Equal(t, unknown.Status, got.Status, "%s: %s", name, got.Text)
		require.Equal(t, unknown.Body, got.Body, name)
	}
	for name, id := range ids {
		for _, body := range []string{`{}`, `{"consumer":"eve"}`, `{"token":"x"}`} {
			requireLikeUnknown(name, confirmMessage(eve, id, body))
		}
		require.Equal(t, 403, confirmMessage(eve, id, `{"consumer":"points"}`).Status, name)
		if name != "a URL" {
			requireLikeUnknown(name, confirmMessage(eve, id, fmt.Sprintf(`{"token":%q}`, token)))
		}
	}
	requireLikeUnknown("points confirms a message to bob", confirmMessage(points, ids["a user"], `{}`))
	requireLikeUnknown("bob confirms a message to a subject of points", confirmMessage(bob, ids["a subject"], `{}`))
	requireLikeUnknown("never sent", confirmMessage(points, ids["a subject of no stream, sends exhausted"], `{}`))
	require.Equal(t, 503, confirmMessage(points, ids["a subject of no stream"], `{}`).Status, "the message will be sent again, and then its receiver can confirm it")
	require.Equal(t, 403, confirmMessage(shop, ids["a subject"], `{}`).Status)
	require.Equal(t, before, admin.QueryText(confirmableRows), "nothing changed")

	for range 2 {
		require.Equal(t, 204, confirmMessage(points, ids["a subject"], `{}`).Status)
		require.Equal(t, "sent", admin.Get(cluster.MessagesPath+"/"+ids["a subject"]).Data("state"), "a repeat by the same caller adds no receipt")
	}
	require.Equal(t, 204, confirmMessage(admin.NewMessageReceiver("stock", "*.orders.paid"), ids["a subject"], `{}`).Status)
	require.Equal(t, 204, confirmMessage(points, ids["a subject, confirm false"], `{}`).Status)
	require.Equal(t, 204, confirmMessage(bob, ids["a user"], `{}`).Status)
	require.Equal(t, 204, confirmMessage(bob, ids["a URL"], fmt.Sprintf(`{"token":%q}`, token)).Status, "the token proves that the caller received the message")
	for _, name := range []string{"a subject", "a subject, confirm false", "a user", "a URL"} {
		require.Equal(t, "received", admin.Get(cluster.MessagesPath+"/"+ids[name]).Data("state"), name)
	}
	require.Zero(t, admin.Count(`select count(*) from operator_actions where action = 'message.receive'`))

	confirmedByAdmin := ids["a dead URL, confirm true"]
	require.Equal(t, 204, confirmMessage(admin, confirmedByAdmin, `{"consumer":"bob"}`).Status, "an admin may confirm for any receiver")
	require.Equal(t, 1, admin.Count(`select count(*) from operator_actions where action = 'message.receive' and subject = $1
		and caller_name = 'admin' and before->>'state' = 'sending' and after->>'state' = 'received' and after->>'consumer' = 'bob'`, confirmedByAdmin))
	require.Equal(t, 404, confirmMessage(admin, ids["a subject of no stream, sends exhausted"], `{}`).Status, "not even an admin can confirm a message that was never sent")
}

// The relay skips locked messages: if each confirmation took a lock, a receiver could delay the sends to other receivers.
func TestRepeatedOrEarlyConfirmationWaitsForNoLock(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	points := w.Admin.NewMessageReceiver("points", "msg.orders.>", "ordres.>")
	two := 2
	sent := w.Save("msg.orders.paid", func(r *api.MessageRequest) { r.ExpectedReceipts = &two })
	unsent := w.Save("ordres.late")
	w.WaitMessage(sent, "sent")
	require.Equal(t, 204, confirmMessage(points, sent, `{}`).Status)

	storetest.HoldLock(t, storetest.ConnectAsOwner(t, w.DatabaseURL), `select from message_live for update`)
	require.Equal(t, 204, confirmMessage(points, sent, `{}`).Status)
	early := confirmMessage(points, unsent, `{}`)
	require.Equal(t, 503, early.Status)
	require.Contains(t, early.Text, "the send of this message is not recorded yet")
}

func TestReceiverOfURLMayConfirmBeforeResponding(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	carl := w.Admin.NewMessageReceiver("carl")
	statuses := make(chan int, 1)
	web := cluster.NewReceiver(t, nil)
	web.Respond = func(_ int, w http.ResponseWriter, _ *http.Request) {
		var e struct{ ID, ConfirmToken string }
		web.Mu.Lock()
		err := json.Unmarshal(web.Bodies[0], &e)
		web.Mu.Unlock()
		if err == nil {
			statuses <- confirmMessage(carl, e.ID, fmt.Sprintf(`{"token":%q}`, e.ConfirmToken)).Status
		}
		w.WriteHeader(http.StatusInternalServerError) // the confirmation counts, not the status
	}
	confirm := true
	id := w.Save(web.URL, func(r *api.MessageRequest) { r.Confirm = &confirm })
	require.Equal(t, 204, <-statuses)
	m := w.Message(id)
	require.Equal(t, []any{"received", "carl"}, []any{m.State, m.FinishedBy})
}

func TestEarlyConfirmationSucceedsOnceMessageIsSaved(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	bob, eve := w.Admin.NewMessageReceiver("bob"), w.Admin.NewMessageReceiver("eve")
	release := w.Admin.BlockSaving()
	w.StartTrigger(w.Client.BaseURL)
	id := w.Accept("c-1", `1`).ServerMsgID
	cluster.Eventually(t, func() bool { return len(w.Inbox("bob")) == 1 }, "the message is delivered")
	early := confirmMessage(bob, id, `{}`)
	require.Equal(t, 503, early.Status, early.Text)
	require.Equal(t, "1", early.Header.Get("Retry-After"))
	unknown, foreign := confirmMessage(eve, task.NewID().String(), `{}`), confirmMessage(eve, id, `{}`)
	require.Equal(t, []int{404, 404}, []int{unknown.Status, foreign.Status})
	require.Equal(t, unknown.Body["message"], foreign.Body["message"])
	require.Equal(t, []int{503, 404}, []int{markRead(bob, id), markRead(eve, id)})
	release()
	cluster.Eventually(t, func() bool {
		status := confirmMessage(bob, id, `{}`).Status
		require.Contains(t, []int{204, 503}, status, "never 404: the message exists")
		return status == 204
	})
	require.Equal(t, "received", w.Message(id).State)
	require.Equal(t, 404, confirmMessage(eve, id, `{}`).Status)
}

func TestConfirmationBeforeRejectionIsNotFound(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	bob, eve, orders := w.Admin.NewMessageReceiver("bob"), w.Admin.NewMessageReceiver("eve"), w.Admin.NewMessageReceiver("orders", "msg.orders.>")
	send := func(key, to, ack string) string {
		sent := w.Admin.Post(cluster.MessagesPath, fmt.Sprintf(`{"client_msg_id":%q,"to":%q,"data":1,"ack":%q}`, key, to, ack))
		require.Contains(t, []int{200, 202}, sent.Status, sent.Text)
		return sent.Data("server_msg_id").(string)
	}
	unknown := confirmMessage(orders, task.NewID().String(), `{}`)
	require.Equal(t, 404, unknown.Status)

	order := send("k-1", "user:bob", "saved")
	require.Equal(t, order, send("k-1", "msg.orders.paid", "accepted"))
	refused := confirmMessage(orders, order, `{}`)
	require.Equal(t, []any{404, unknown.Body["message"]}, []any{refused.Status, refused.Body["message"]}, "the accepted message will be rejected, not saved")
	require.Equal(t, 204, markRead(bob, order))

	chat := send("k-2", "user:eve", "saved")
	require.Equal(t, chat, send("k-2", "user:bob", "accepted"))
	require.Equal(t, []int{404, 404, 204}, []int{markRead(bob, chat), confirmMessage(bob, chat, `{}`).Status, markRead(eve, chat)})

	require.Equal(t, 503, confirmMessage(orders, send("k-3", "msg.orders.paid", "accepted"), `{}`).Status, "this message will be saved")
	require.Equal(t, 503, markRead(bob, send("k-4", "user:bob", "accepted")))
}
