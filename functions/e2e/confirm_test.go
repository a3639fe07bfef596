package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// receiver makes a caller that may confirm messages to subjects, and acts as it.
func (s *server) receiver(name string, receives ...string) *server {
	secret := sha256.Sum256([]byte(name))
	s.exec(`insert into callers (name, token_hash, roles, queues, receives) values ($1, $2, '{receiver}', '{}', $3)`,
		name, secret[:], append([]string{}, receives...))
	as := *s
	as.user, as.password = name, name
	return &as
}

// confirmMessage confirms a message.
func confirmMessage(s *server, id, body string) reply {
	return s.post(post+"/"+id+"/received", body)
}

// ledgerOfMessages is all that a confirmation may change.
const ledgerOfMessages = `select concat(
	(select string_agg(concat_ws(' ', id, status, remaining_sends), ';' order by id) from reliable_messages),
	(select string_agg(concat_ws(' ', message_id, consumer), ';' order by message_id, consumer) from message_receipts))`

func TestOnlyItsReceiverConfirmsAMessage(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	admin := w.looker
	shop := admin.caller("shop", "submitter")
	points, bob := admin.receiver("points", "msg.orders.>", "ordres.>"), admin.receiver("bob")
	eve := admin.receiver("eve", "msg.bills.>")
	token := ""
	web := newReceiver(t, nil)
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	dead := fmt.Sprintf("http://127.0.0.1:%d/", port)

	var shopID int64
	require.NoError(t, admin.owner.QueryRow(t.Context(), `select id from callers where name = 'shop'`).Scan(&shopID))
	submit := func(key, fields string) string {
		saved := shop.post(post, fmt.Sprintf(`{"client_msg_id":%q,"data":1,%s}`, key, fields))
		require.Equal(t, 200, saved.status, saved.text)
		computed := task.ID(message.ID(shopID, "shop", key)).String()
		require.Equal(t, computed, saved.data("server_msg_id"), "anybody can compute it")
		return computed
	}
	ids := map[string]string{
		"a subject":                    submit("1", `"to":"msg.orders.paid","expected_receipts":2`),
		"a subject, confirm false":     submit("2", `"to":"msg.orders.paid","confirm":false`),
		"a user":                       submit("3", `"to":"user:bob"`),
		"a dead URL":                   submit("4", fmt.Sprintf(`"to":%q`, dead)),
		"a dead URL, confirm true":     submit("5", fmt.Sprintf(`"to":%q,"confirm":true`, dead)),
		"a URL":                        submit("6", fmt.Sprintf(`"to":%q,"confirm":true`, web.URL)),
		"a subject of no stream":       submit("7", `"to":"ordres.late"`),
		"a subject of no stream, over": submit("8", `"to":"ordres.never","max_sends":1`),
	}
	require.Eventually(t, func() bool {
		return admin.count(`select count(*) from message_live where send_no = 1`)+admin.count(`select count(*) from message_done where send_no = 1`) == len(ids)
	}, waitLimit, 10*time.Millisecond, "each had its first send")
	var delivered map[string]any
	require.NoError(t, json.Unmarshal(web.bodies[0], &delivered))
	require.Equal(t, ids["a URL"], delivered["id"])
	token = delivered["confirmtoken"].(string)
	require.Len(t, token, 43)

	before := admin.text(ledgerOfMessages)
	unknown := confirmMessage(eve, task.NewID().String(), `{}`)
	require.Equal(t, 404, unknown.status)
	alike := func(name string, got reply) {
		delete(got.body, "request_id")
		delete(unknown.body, "request_id")
		require.Equal(t, unknown.status, got.status, "%s: %s", name, got.text)
		require.Equal(t, unknown.body, got.body, name)
	}
	for name, id := range ids {
		for _, body := range []string{`{}`, `{"consumer":"eve"}`, `{"token":"x"}`} {
			alike(name, confirmMessage(eve, id, body))
		}
		require.Equal(t, 403, confirmMessage(eve, id, `{"consumer":"points"}`).status, name)
		if name != "a URL" {
			alike(name, confirmMessage(eve, id, fmt.Sprintf(`{"token":%q}`, token)))
		}
	}
	alike("another's user", confirmMessage(points, ids["a user"], `{}`))
	alike("another's subject", confirmMessage(bob, ids["a subject"], `{}`))
	alike("never sent", confirmMessage(points, ids["a subject of no stream, over"], `{}`))
	require.Equal(t, 503, confirmMessage(points, ids["a subject of no stream"], `{}`).status, "it will be sent again; its receiver may repeat this")
	require.Equal(t, 403, confirmMessage(shop, ids["a subject"], `{}`).status)
	require.Equal(t, before, admin.text(ledgerOfMessages), "nothing changed")

	for range 2 {
		require.Equal(t, 204, confirmMessage(points, ids["a subject"], `{}`).status)
		require.Equal(t, "sent", admin.get(post+"/"+ids["a subject"]).data("state"), "a caller counts once")
	}
	require.Equal(t, 204, confirmMessage(admin.receiver("stock", "*.orders.paid"), ids["a subject"], `{}`).status)
	require.Equal(t, 204, confirmMessage(points, ids["a subject, confirm false"], `{}`).status)
	require.Equal(t, 204, confirmMessage(bob, ids["a user"], `{}`).status)
	require.Equal(t, 204, confirmMessage(bob, ids["a URL"], fmt.Sprintf(`{"token":%q}`, token)).status, "who has the token has the message")
	for _, name := range []string{"a subject", "a subject, confirm false", "a user", "a URL"} {
		require.Equal(t, "received", admin.get(post+"/"+ids[name]).data("state"), name)
	}
	require.Zero(t, admin.count(`select count(*) from operator_actions where action = 'message.receive'`))

	by := ids["a dead URL, confirm true"]
	require.Equal(t, 204, confirmMessage(admin, by, `{"consumer":"bob"}`).status, "an admin may, by hand")
	require.Equal(t, 1, admin.count(`select count(*) from operator_actions where action = 'message.receive' and subject = $1
		and caller_name = 'admin' and before->>'state' = 'sending' and after->>'state' = 'received' and after->>'consumer' = 'bob'`, by))
	require.Equal(t, 404, confirmMessage(admin, ids["a subject of no stream, over"], `{}`).status, "not even an admin confirms what was never sent")
}

func TestAReceiverOfAURLMayConfirmBeforeItAnswers(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	door := w.looker.receiver("door")
	statuses := make(chan int, 1)
	web := newReceiver(t, nil)
	web.answer = func(_ int, answer http.ResponseWriter, _ *http.Request) {
		var e struct{ ID, ConfirmToken string }
		web.mu.Lock()
		err := json.Unmarshal(web.bodies[0], &e)
		web.mu.Unlock()
		if err == nil {
			statuses <- confirmMessage(door, e.ID, fmt.Sprintf(`{"token":%q}`, e.ConfirmToken)).status
		}
		answer.WriteHeader(http.StatusInternalServerError) // it is received all the same
	}
	confirm := true
	saved, err := w.client.SubmitMessage(t.Context(), api.MessageRequest{ClientMsgID: "k", To: web.URL, Data: []byte(`1`), Confirm: &confirm})
	require.NoError(t, err)
	require.Equal(t, 204, <-statuses)
	m, err := w.client.Message(t.Context(), saved.ServerMsgID)
	require.NoError(t, err)
	require.Equal(t, []any{"received", "door"}, []any{m.State, m.FinishedBy})
}

func TestAReceiverThatConfirmsAtOnceIsNeverRefused(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	o.startRelay()
	o.until(o.save("msg.orders.paid", once), "sent") // all is up
	messages, err := url.Parse(o.client.BaseURL)
	require.NoError(t, err)
	admin := o.at(messages.String())
	admin.owner = o.looker.owner
	points := admin.receiver("points", "msg.orders.>")
	consumer, err := o.jetStream().CreateConsumer(t.Context(), "MESSAGES", jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy})
	require.NoError(t, err)
	statuses := make(chan int, 100)
	running, err := consumer.Consume(func(m jetstream.Msg) {
		statuses <- confirmMessage(points, m.Headers().Get("ce-id"), `{}`).status
	})
	require.NoError(t, err)
	t.Cleanup(running.Stop)
	for range 30 {
		id := o.save("msg.orders.paid")
		require.Equal(t, 204, <-statuses)
		require.Equal(t, "received", o.state(id).State)
	}
}

func TestAReceiverMayRepeatAConfirmationUntilTheMessageIsSaved(t *testing.T) {
	t.Parallel()
	w := twoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	bob, eve := w.looker.receiver("bob"), w.looker.receiver("eve")
	hand, err := w.looker.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = hand.Exec(t.Context(), `lock table messages in exclusive mode`) // nothing is saved, and all is read
	require.NoError(t, err)
	w.trigger(w.at)
	id := w.accept("c-1", `1`).ServerMsgID
	require.Eventually(t, func() bool { return len(w.inbox("bob")) == 1 }, waitLimit, 5*time.Millisecond, "it is delivered")
	early := confirmMessage(bob, id, `{}`)
	require.Equal(t, 503, early.status, early.text)
	require.Equal(t, "1", early.header.Get("Retry-After"))
	unknown, foreign := confirmMessage(eve, task.NewID().String(), `{}`), confirmMessage(eve, id, `{}`)
	require.Equal(t, []int{404, 404}, []int{unknown.status, foreign.status})
	require.Equal(t, unknown.body["message"], foreign.body["message"])
	read := func(as *server) int {
		return as.post("/api/v1/messages/read", fmt.Sprintf(`{"between":"admin,%s","up_to":%q}`, as.user, id)).status
	}
	require.Equal(t, []int{503, 404}, []int{read(bob), read(eve)})
	require.NoError(t, hand.Commit(t.Context()))
	require.Eventually(t, func() bool {
		status := confirmMessage(bob, id, `{}`).status
		require.Contains(t, []int{204, 503}, status, "never as if there were no such message")
		return status == 204
	}, waitLimit, 5*time.Millisecond)
	require.Equal(t, "received", w.townState(id))
	require.Equal(t, 404, confirmMessage(eve, id, `{}`).status)
}

func TestNobodyWaitsForAMessageWhoseIDIsThatOfAnotherSavedOne(t *testing.T) {
	t.Parallel()
	w := twoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	bob, eve, orders := w.looker.receiver("bob"), w.looker.receiver("eve"), w.looker.receiver("orders", "msg.orders.>")
	send := func(key, to, ack string) string {
		sent := w.looker.post(post, fmt.Sprintf(`{"client_msg_id":%q,"to":%q,"data":1,"ack":%q}`, key, to, ack))
		require.Contains(t, []int{200, 202}, sent.status, sent.text)
		return sent.data("server_msg_id").(string)
	}
	read := func(as *server, id string) int {
		return as.post("/api/v1/messages/read", fmt.Sprintf(`{"between":"admin,%s","up_to":%q}`, as.user, id)).status
	}
	unknown := confirmMessage(orders, task.NewID().String(), `{}`)
	require.Equal(t, 404, unknown.status)

	order := send("k-1", "user:bob", "saved")
	require.Equal(t, order, send("k-1", "msg.orders.paid", "accepted"))
	refused := confirmMessage(orders, order, `{}`)
	require.Equal(t, []any{404, unknown.body["message"]}, []any{refused.status, refused.body["message"]}, "it will be rejected, not saved")
	require.Equal(t, 204, read(bob, order))

	chat := send("k-2", "user:eve", "saved")
	require.Equal(t, chat, send("k-2", "user:bob", "accepted"))
	require.Equal(t, []int{404, 404, 204}, []int{read(bob, chat), confirmMessage(bob, chat, `{}`).status, read(eve, chat)})

	require.Equal(t, 503, confirmMessage(orders, send("k-3", "msg.orders.paid", "accepted"), `{}`).status, "this one will be saved")
	require.Equal(t, 503, read(bob, send("k-4", "user:bob", "accepted")))
}
