package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// town is all functions in one process, with NATS and a trigger.
type town struct {
	t       *testing.T
	nats    *sandbox.NATS
	bin     string
	env     []string
	process *sandbox.Process
	client  *api.Client
	looker  *server

	at      string // where the functions are
	url     string
	options sandbox.NATSOptions
}

// openWebhooks lets webhooks reach this machine.
func openWebhooks(t *testing.T) *town {
	return openCluster(t, "SENDONCE_OUTGOING_NETWORKS=127.0.0.0/8")
}

func openCluster(t *testing.T, more ...string) *town {
	t.Helper()
	url := sandbox.NewDatabase(t)
	w := &town{t: t, nats: newNATS(t), bin: binary(t)}
	w.env = settings(url, append([]string{"NATS_URL=" + w.nats.URL(), "SENDONCE_SAFETY_TICK=1s"}, more...)...)
	w.process = startProcess(t, w.bin, w.env)
	at := address(t, w.process)
	w.client = api.NewClient(at, "admin", "secret")
	w.looker = (&server{t: t, url: at, user: "admin", password: "secret"}).connect(url)
	w.trigger(at)
	return w
}

func (w *town) trigger(at string) {
	w.t.Helper()
	p := startProcess(w.t, w.bin, append(append([]string{}, w.env...), "SENDONCE_FUNCTIONS_URL="+at), "trigger")
	require.NoError(w.t, p.WaitFor(w.t.Context(), `"triggering"`))
}

// finishOne has a task sent and reported, and gives its id.
func (w *town) finishOne(change ...func(*api.SendRequest)) string {
	w.t.Helper()
	req := api.SendRequest{PhoneNumber: "13800138000", Content: "hi", Source: "shop", Metadata: json.RawMessage(`{"order":4711}`)}
	for _, c := range change {
		c(&req)
	}
	sent, err := w.client.Send(w.t.Context(), req)
	require.NoError(w.t, err)
	tasks, err := w.client.Claim(w.t.Context(), api.ClaimRequest{AppID: "app"})
	require.NoError(w.t, err)
	require.Len(w.t, tasks, 1)
	status := 2
	_, err = w.client.Report(w.t.Context(), api.ReportRequest{TaskID: sent.TaskID, AppID: "app", Status: &status})
	require.NoError(w.t, err)
	return sent.TaskID
}

func (w *town) endpoint(url string, events ...string) api.EndpointResponse {
	w.t.Helper()
	e, err := w.client.AddEndpoint(w.t.Context(), api.EndpointRequest{URL: url, Events: events})
	require.NoError(w.t, err)
	return e
}

// waitDeliveries waits until as many deliveries are in a state.
func waitDeliveries(w *town, state string, n int) []api.DeliveryResponse {
	w.t.Helper()
	var page api.Page[api.DeliveryResponse]
	require.Eventually(w.t, func() bool {
		var err error
		page, err = w.client.Deliveries(w.t.Context(), api.DeliveriesRequest{State: state})
		return err == nil && len(page.Items) == n
	}, waitLimit, 10*time.Millisecond, state)
	return page.Items
}

// makeDue makes everything due that waits for another try.
func makeDue(w *town) {
	w.looker.exec(`update webhook_deliveries set next_at = now() where state = 0`)
	w.looker.exec(`update message_live set next_at = now() where remaining_sends > 0`)
}

// receiver is a third party's server.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	answer  func(n int, w http.ResponseWriter, r *http.Request) // n counts from 1; nil = 204
	headers []http.Header
	bodies  [][]byte
}

func newReceiver(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *receiver {
	t.Helper()
	v := &receiver{answer: answer}
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		v.mu.Lock()
		v.headers, v.bodies = append(v.headers, r.Header.Clone()), append(v.bodies, body)
		n, answer := len(v.bodies), v.answer
		v.mu.Unlock()
		if answer == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		answer(n, w, r)
	}))
	t.Cleanup(v.Close)
	return v
}

// listenAt takes an address that is free.
func listenAt(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	return l
}

func answers(status ...int) func(int, http.ResponseWriter, *http.Request) {
	return func(n int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status[min(n, len(status))-1]) }
}

func (v *receiver) got() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.bodies)
}

// event waits for the n-th call and gives its event, verified.
func (v *receiver) event(t *testing.T, n int, secret string) api.WebhookEvent {
	t.Helper()
	require.Eventually(t, func() bool { return v.got() >= n }, waitLimit, 5*time.Millisecond)
	v.mu.Lock()
	defer v.mu.Unlock()
	require.NoError(t, api.VerifyWebhook(v.headers[n-1], v.bodies[n-1], time.Now(), secret))
	var e api.WebhookEvent
	require.NoError(t, json.Unmarshal(v.bodies[n-1], &e), string(v.bodies[n-1]))
	require.Equal(t, e.ID, v.headers[n-1].Get("webhook-id"))
	return e
}

func TestAThirdPartyIsToldOfATasksOutcome(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	endpoint, callback := newReceiver(t, nil), newReceiver(t, nil)
	registered := w.endpoint(endpoint.URL)
	id := w.finishOne(func(r *api.SendRequest) { r.CallbackURL = callback.URL })
	signing, err := w.client.SigningSecret(t.Context())
	require.NoError(t, err)
	told := endpoint.event(t, 1, registered.Secret)
	require.Equal(t, told, callback.event(t, 1, signing.Secret), "both hear the same")
	require.Equal(t, "sendonce.task.succeeded.v1", told.Type)
	require.Equal(t, id, told.Subject)
	require.Len(t, told.Sequence, 20)
	var data api.TaskEventData
	require.NoError(t, json.Unmarshal(told.Data, &data))
	require.Equal(t, "succeeded", data.State)
	require.Equal(t, 2, data.Status)
	require.Equal(t, "shop", data.Source)
	require.JSONEq(t, `{"order":4711}`, string(data.Metadata))
	require.NotContains(t, string(endpoint.bodies[0]), "13800138000")

	for _, d := range waitDeliveries(w, "delivered", 2) {
		require.Equal(t, id, d.Subject)
		require.Len(t, d.Tries, 1)
		require.Equal(t, 204, d.Tries[0].Status)
	}
	require.Equal(t, 1, endpoint.got())
	require.Eventually(t, func() bool { return w.looker.count(`select count(*) from event_outbox`) == 0 }, waitLimit, 5*time.Millisecond)
}

func TestWhatFailsIsToldAgainAndAResendIsNotSwallowed(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	shaky := newReceiver(t, answers(500, 302, 200))
	secret := w.endpoint(shaky.URL).Secret
	w.finishOne()
	first := shaky.event(t, 1, secret)
	for n := 2; n <= 3; n++ {
		waitDeliveries(w, "pending", 1)
		require.Eventually(t, func() bool {
			return w.looker.count(`select count(*) from webhook_deliveries where jsonb_array_length(tries) = $1`, n-1) == 1
		}, waitLimit, 5*time.Millisecond)
		makeDue(w)
		again := shaky.event(t, n, secret)
		require.Equal(t, first, again, "the same event under the same id")
	}
	delivered := waitDeliveries(w, "delivered", 1)[0]
	require.Len(t, delivered.Tries, 3)
	require.Equal(t, 500, delivered.Tries[0].Status)
	require.Contains(t, delivered.Tries[1].Error, "redirects are not followed")

	_, err := w.client.ResendDelivery(t.Context(), delivered.ID)
	require.NoError(t, err)
	require.Equal(t, first.ID, shaky.event(t, 4, secret).ID)
	waitDeliveries(w, "delivered", 1)
}

func TestAnEndpointThatIsGoneIsDisabledAndAnotherHearsOfIt(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	gone, other, all := newReceiver(t, answers(410)), newReceiver(t, nil), newReceiver(t, nil)
	registered := w.endpoint(gone.URL)
	secret, everything := w.endpoint(other.URL, "webhook.disabled").Secret, w.endpoint(all.URL).Secret
	first := w.finishOne()
	told := other.event(t, 1, secret)
	require.Equal(t, "sendonce.webhook.disabled.v1", told.Type)
	var data api.EndpointEventData
	require.NoError(t, json.Unmarshal(told.Data, &data))
	require.Equal(t, registered.ID, data.EndpointID)
	require.Equal(t, "gone", data.Reason)
	require.Eventually(t, func() bool { return all.got() == 2 }, waitLimit, 5*time.Millisecond)
	second := w.finishOne()
	subjects := []string{all.event(t, 1, everything).Subject, all.event(t, 2, everything).Subject, all.event(t, 3, everything).Subject}
	requireSame(t, []string{first, registered.ID, second}, subjects, "others hear of the second task")
	waitDeliveries(w, "pending", 0)
	now, err := w.client.Endpoint(t.Context(), registered.ID)
	require.NoError(t, err)
	require.False(t, now.Enabled)
	require.Equal(t, 1, gone.got(), "nothing more is told")
}

func TestAReceiverThatNeverAnswersKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	w := openCluster(t, allowLoopback, "SENDONCE_WEBHOOK_TIMEOUT=20s")
	hang := make(chan struct{})
	stuck := newReceiver(t, func(int, http.ResponseWriter, *http.Request) { <-hang })
	t.Cleanup(func() { close(hang) }) // before the server waits for its calls
	well := newReceiver(t, nil)
	hangs := w.endpoint(stuck.URL).ID
	w.endpoint(well.URL)
	const n = 30
	for range n {
		w.finishOne()
	}
	require.Eventually(t, func() bool { return well.got() >= n }, waitLimit, 5*time.Millisecond)
	require.Positive(t, stuck.got())
	require.Zero(t, w.looker.count(`select count(*) from webhook_deliveries where endpoint_id = $1 and jsonb_array_length(tries) > 0`, hangs),
		"within the time of one call to the other")
	waitDeliveries(w, "delivered", n)
}

func TestAMessageToAURLEndsWithIts2xx(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	shop := newReceiver(t, answers(503, 200))
	signing, err := w.client.SigningSecret(t.Context())
	require.NoError(t, err)
	saved, err := w.client.SubmitMessage(t.Context(), api.MessageRequest{
		ClientMsgID: "order-1", To: shop.URL + "/in", Type: "order.paid.v1", Data: []byte(`{"order":1}`),
	})
	require.NoError(t, err)
	state := func() api.MessageResponse {
		m, err := w.client.Message(t.Context(), saved.ServerMsgID)
		require.NoError(t, err)
		return m
	}
	first := shop.event(t, 1, signing.Secret)
	require.Equal(t, saved.ServerMsgID, first.ID)
	require.Equal(t, "order.paid.v1", first.Type)
	require.JSONEq(t, `{"order":1}`, string(first.Data))
	require.Eventually(t, func() bool { return state().RemainingSends == 4 }, waitLimit, 5*time.Millisecond, "an answer of 503 uses a send")
	require.Equal(t, "answered 503 Service Unavailable", state().LastError)
	makeDue(w)
	require.Equal(t, first, shop.event(t, 2, signing.Secret))
	require.Eventually(t, func() bool { return state().State == "received" }, waitLimit, 5*time.Millisecond)

	confirm := true
	asked, err := w.client.SubmitMessage(t.Context(), api.MessageRequest{ClientMsgID: "order-2", To: shop.URL, Data: []byte(`2`), Confirm: &confirm})
	require.NoError(t, err)
	saved = asked
	require.Eventually(t, func() bool { return state().State == "sent" }, waitLimit, 5*time.Millisecond, "its 2xx is not the confirmation")
	require.NoError(t, w.client.ConfirmMessage(t.Context(), saved.ServerMsgID))
	require.Equal(t, "received", state().State)
}

func TestAReceiverOfAURLThatIsDownForLongerThanTheScheduleIsStuckAndARedriveReachesIt(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	address, sends := fmt.Sprintf("127.0.0.1:%d", port), 2
	saved, err := w.client.SubmitMessage(t.Context(), api.MessageRequest{ClientMsgID: "order-1", To: "http://" + address, Data: []byte(`1`), MaxSends: &sends})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		makeDue(w)
		m, err := w.client.Message(t.Context(), saved.ServerMsgID)
		return err == nil && m.Stuck
	}, waitLimit, 50*time.Millisecond)
	listed := w.looker.get("/api/v1/messages/stuck?kind=sending")
	require.Contains(t, listed.text, saved.ServerMsgID)
	require.Contains(t, listed.text, "connection refused")
	shop := newReceiver(t, nil)
	revived := &httptest.Server{Listener: listenAt(t, address), Config: &http.Server{Handler: shop.Config.Handler}}
	revived.Start()
	t.Cleanup(revived.Close)
	require.Equal(t, 200, w.looker.post("/api/v1/messages/"+saved.ServerMsgID+"/redrive", `{}`).status)
	require.Eventually(t, func() bool {
		m, err := w.client.Message(t.Context(), saved.ServerMsgID)
		return err == nil && m.State == "received"
	}, waitLimit, 10*time.Millisecond)
	require.Equal(t, 1, shop.got())
}

func TestAddressesThatAreNotPublicAreNotCalled(t *testing.T) {
	t.Parallel()
	w := openCluster(t)
	inside := newReceiver(t, nil)
	w.endpoint(inside.URL)
	w.finishOne()
	require.Eventually(t, func() bool {
		return w.looker.count(`select count(*) from webhook_deliveries where jsonb_array_length(tries) = 1`) == 1
	}, waitLimit, 5*time.Millisecond)
	d := waitDeliveries(w, "pending", 1)[0]
	require.Contains(t, d.Tries[0].Error, "SENDONCE_OUTGOING_NETWORKS")
	require.Zero(t, inside.got())
}

func TestAPoisonousEventIsADeadLetterAndItsSuccessorsAreTold(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	shop := newReceiver(t, nil)
	secret := w.endpoint(shop.URL).Secret
	require.Equal(t, w.finishOne(), shop.event(t, 1, secret).Subject) // the streams are there
	nc, err := nats.Connect(w.nats.URL())
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	poison := func(id, subject, data string) {
		m := nats.NewMsg("evt.task.succeeded")
		for name, value := range map[string]string{
			"ce-specversion": "1.0", "ce-id": id, "ce-source": "/sendonce", "ce-type": "sendonce.task.succeeded.v1", "ce-subject": subject,
			"content-type": "application/json",
		} {
			m.Header.Set(name, value)
		}
		m.Data = []byte(data)
		_, err := js.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	poison("p1", "no-id", `{}`)
	poison("p2", "018f0000-0000-7000-8000-000000000000", `{}`)
	poison("p3", "018f0000-0000-7000-8000-000000000000", `{"broken`)
	poison("p4", "018f0000-0000-7000-8000-000000000000", "\"\xff\"")
	id := w.finishOne()
	require.Equal(t, id, shop.event(t, 2, secret).Subject)
	var letters []any
	require.Eventually(t, func() bool {
		letters = w.looker.get("/api/v1/admin/dead-letters").data("items").([]any)
		return len(letters) == 4
	}, waitLimit, 10*time.Millisecond)
	for _, l := range letters {
		require.Equal(t, "deliver", l.(map[string]any)["function"])
		require.NotEmpty(t, l.(map[string]any)["reason"])
	}
	require.Equal(t, 2, shop.got())
}

func TestADeliverKilledWhileItPostsTellsTheSameAgain(t *testing.T) {
	t.Parallel()
	w := openWebhooks(t)
	hang := make(chan struct{})
	shop := newReceiver(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			<-hang
		}
	})
	t.Cleanup(func() { close(hang) })
	secret := w.endpoint(shop.URL).Secret
	w.finishOne()
	first := shop.event(t, 1, secret)
	require.NoError(t, w.process.Kill())
	makeDue(w) // the lease ended
	w.process = startProcess(t, w.bin, w.env)
	w.trigger(address(t, w.process))
	require.Equal(t, first, shop.event(t, 2, secret))
	require.Eventually(t, func() bool {
		return w.looker.count(`select count(*) from webhook_deliveries where state = 1`) == 1
	}, waitLimit, 5*time.Millisecond)
	require.Equal(t, 2, shop.got(), fmt.Sprint(first))
}
