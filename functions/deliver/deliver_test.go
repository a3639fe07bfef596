package deliver_test

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

func TestOutcomeReachesEndpoint(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	endpoint, callback := cluster.NewReceiver(t, nil), cluster.NewReceiver(t, nil)
	registered := w.AddEndpoint(endpoint.URL)
	id := w.FinishTask(func(r *api.SendRequest) { r.CallbackURL = callback.URL })
	signing, err := w.Client.SigningSecret(t.Context())
	require.NoError(t, err)
	event := endpoint.Event(t, 1, registered.Secret)
	require.Equal(t, event, callback.Event(t, 1, signing.Secret), "both receive the same event")
	require.Equal(t, "sendonce.task.succeeded.v1", event.Type)
	require.Equal(t, id, event.Subject)
	require.Len(t, event.Sequence, 20)
	var data api.TaskEventData
	require.NoError(t, json.Unmarshal(event.Data, &data))
	require.Equal(t, "succeeded", data.State)
	require.Equal(t, 2, data.Status)
	require.Equal(t, "shop", data.Source)
	require.JSONEq(t, `{"order":4711}`, string(data.Metadata))
	require.NotContains(t, string(endpoint.Bodies[0]), "13800138000")

	for _, d := range cluster.WaitDeliveries(w, "delivered", 2) {
		require.Equal(t, id, d.Subject)
		require.Len(t, d.Tries, 1)
		require.Equal(t, 204, d.Tries[0].Status)
	}
	require.Equal(t, 1, endpoint.Calls())
	w.Admin.WaitCount(0, `select count(*) from event_outbox`)
}

func TestForgedEventBecomesADeadLetterAlone(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	w.AddEndpoint(cluster.NewReceiver(t, nil).URL)
	id, orphan := w.Submit(), w.Submit(func(r *api.SendRequest) { r.CallbackURL = "https://shop.example/" })
	w.Admin.Exec(`update tasks set caller_id = 4711 where id = $1`, orphan) // there is no such caller
	raw := make([]byte, 3000)
	_, _ = rand.Read(raw)
	long := hex.EncodeToString(raw) // even compressed too long for an index of Postgres
	const task, delivered = "sendonce.task.failed.v1", "sendonce.message.delivered.v1"
	event := func(id, kind, subject, data string) string {
		return fmt.Sprintf(`{"id":"%s","type":"%s","subject":"%s","time":"2026-01-02T03:04:05Z","data":%s}`, id, kind, subject, data)
	}
	message := `{"server_msg_id":"` + id + `","fp":"` + strings.Repeat("00", 16) + `"}`
	forged := []string{
		event("year", delivered, "", `{"delivered_at":"0000-01-01T00:00:00Z","messages":[`+message+`]}`),
		event(long, task, id, "{}"),
		event("type", "sendonce.task."+long, id, "{}"),
		event(`nul\u0000`, task, id, "{}"),
		event("caller", task, orphan, "{}"),
	}
	at := time.Now().UTC().Add(time.Hour).Format(time.RFC3339) // a row with a time from before the stream was created would be deleted
	twice := event("twice", delivered, "", `{"delivered_at":"`+at+`","messages":[`+message+`,`+message+`]}`)
	deleted := event("deleted", "sendonce.webhook.disabled.v1", "01890000-0000-7000-8000-000000000000", "{}") // a deleted endpoint to which no delivery is left
	batch := "[" + strings.Join(append(forged, twice, deleted, event("good", task, id, "{}")), ",") + "]"
	response := w.Admin.Do("POST", "/events/deliver", batch, "Content-Type", "application/cloudevents-batch+json")
	require.Equal(t, 204, response.Status, response.Text)
	require.Equal(t, 1, w.Admin.Count(`select count(*) from webhook_deliveries where event_id = 'good'`))
	require.Equal(t, len(forged), w.Admin.Count(`select count(*) from dead_letters where function = 'deliver' and dead`))
	require.Equal(t, 1, w.Admin.Count(`select count(*) from accepted_messages where id = $1 and delivered_at is not null`, id))
	alone := w.Admin.Do("POST", "/events/deliver", `{"specversion":"1.0","source":"/s",`+forged[0][1:], "Content-Type", "application/cloudevents+json")
	require.Equal(t, 204, alone.Status, alone.Text)
}

func TestFailedQueryMakesNoDeadLetter(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	w.AddEndpoint(cluster.NewReceiver(t, nil).URL)
	id := w.Submit()
	event := func(eventID string) string {
		return fmt.Sprintf(`{"specversion":"1.0","source":"/s","id":"%s","type":"sendonce.task.failed.v1","subject":"%s","data":{}}`, eventID, id)
	}
	post := func(status int) {
		t.Helper()
		for kind, body := range map[string]string{
			"application/cloudevents+json":       event("alone"),
			"application/cloudevents-batch+json": "[" + event("first") + "," + event("second") + "]",
		} {
			response := w.Admin.Do("POST", "/events/deliver", body, "Content-Type", kind)
			require.Equal(t, status, response.Status, response.Text)
		}
	}
	w.Admin.Exec(`create policy end_session on webhook_endpoints using (pg_terminate_backend(pg_backend_pid()))`)
	w.Admin.Exec(`alter table webhook_endpoints enable row level security`)
	post(503)
	require.Zero(t, w.Admin.Count(`select count(*) from dead_letters`))
	w.Admin.Exec(`alter table webhook_endpoints disable row level security`)
	post(204)
	require.Equal(t, 3, w.Admin.Count(`select count(*) from webhook_deliveries where event_id in ('alone', 'first', 'second')`))
	require.Zero(t, w.Admin.Count(`select count(*) from dead_letters`))
}

func TestDeliveryIsSettledAfterTriggerDied(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	respond := make(chan struct{})
	slow := cluster.NewReceiver(t, func(_ int, rw http.ResponseWriter, _ *http.Request) {
		<-respond
		rw.WriteHeader(http.StatusNoContent)
	})
	w.AddEndpoint(slow.URL)
	w.FinishTask()
	message := w.Save(slow.URL, cluster.WithoutConfirm)
	cluster.Eventually(t, func() bool { return slow.Calls() == 2 })
	require.NoError(t, w.Process("trigger").Kill())
	close(respond)
	cluster.WaitDeliveries(w, "delivered", 1)
	w.WaitMessage(message, "received")
	require.Equal(t, 2, slow.Calls(), "nothing was posted again")
}

func TestFailedDeliveryIsRetriedAndResent(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	failing := cluster.NewReceiver(t, cluster.RespondWith(500, 302, 200))
	secret := w.AddEndpoint(failing.URL).Secret
	w.FinishTask()
	first := failing.Event(t, 1, secret)
	events, err := w.JetStream().Stream(t.Context(), "EVENTS")
	require.NoError(t, err)
	require.NoError(t, events.Purge(t.Context()), "a recorded event is not needed in the stream")
	for n := 2; n <= 3; n++ {
		cluster.WaitDeliveries(w, "pending", 1)
		w.Admin.WaitCount(1, `select count(*) from webhook_deliveries where jsonb_array_length(tries) = $1`, n-1)
		cluster.MakeDue(w)
		again := failing.Event(t, n, secret)
		require.Equal(t, first, again, "the same event under the same id")
	}
	delivered := cluster.WaitDeliveries(w, "delivered", 1)[0]
	require.Len(t, delivered.Tries, 3)
	require.Equal(t, 500, delivered.Tries[0].Status)
	require.Contains(t, delivered.Tries[1].Error, "redirects are not followed")

	_, err = w.Client.ResendDelivery(t.Context(), delivered.ID)
	require.NoError(t, err)
	require.Equal(t, first.ID, failing.Event(t, 4, secret).ID)
	cluster.WaitDeliveries(w, "delivered", 1)
}

func TestGoneEndpointIsDisabledAndReported(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	gone, other, all := cluster.NewReceiver(t, cluster.RespondWith(410)), cluster.NewReceiver(t, nil), cluster.NewReceiver(t, nil)
	registered := w.AddEndpoint(gone.URL)
	secret, allSecret := w.AddEndpoint(other.URL, "webhook.disabled").Secret, w.AddEndpoint(all.URL).Secret
	first := w.FinishTask()
	event := other.Event(t, 1, secret)
	require.Equal(t, "sendonce.webhook.disabled.v1", event.Type)
	var data api.EndpointEventData
	require.NoError(t, json.Unmarshal(event.Data, &data))
	require.Equal(t, registered.ID, data.EndpointID)
	require.Equal(t, "gone", data.Reason)
	cluster.Eventually(t, func() bool { return all.Calls() == 2 })
	second := w.FinishTask()
	subjects := []string{all.Event(t, 1, allSecret).Subject, all.Event(t, 2, allSecret).Subject, all.Event(t, 3, allSecret).Subject}
	require.ElementsMatch(t, []string{first, registered.ID, second}, subjects, "other endpoints still receive events")
	cluster.WaitDeliveries(w, "pending", 0)
	disabled, err := w.Client.Endpoint(t.Context(), registered.ID)
	require.NoError(t, err)
	require.False(t, disabled.Enabled)
	require.Equal(t, 1, gone.Calls(), "nothing more is delivered")

	require.NoError(t, w.Client.DeleteEndpoint(t.Context(), registered.ID))
	w.Admin.Exec(`insert into event_outbox (kind, ids) values ('webhook.disabled', array[$1::uuid])`, registered.ID) // the endpoint is deleted before its event is published
	third := w.FinishTask()
	require.Equal(t, third, all.Event(t, 4, allSecret).Subject)
	w.Admin.WaitCount(0, `select count(*) from event_outbox`)
	require.Equal(t, 1, other.Calls(), "an event without the endpoint's data is not published")
	require.Zero(t, w.Admin.Count(`select count(*) from dead_letters`))
}

func TestMessageToURLIsReceivedAfterA2xx(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	shop := cluster.NewReceiver(t, cluster.RespondWith(503, 200))
	signing, err := w.Client.SigningSecret(t.Context())
	require.NoError(t, err)
	id := w.Save(shop.URL+"/in", func(r *api.MessageRequest) { r.Type = "order.paid.v1" })
	first := shop.Event(t, 1, signing.Secret)
	require.Equal(t, id, first.ID)
	require.Equal(t, "order.paid.v1", first.Type)
	require.JSONEq(t, `{"order":4711}`, string(first.Data))
	cluster.Eventually(t, func() bool { return w.Message(id).RemainingSends == 4 }, "a 503 uses a send")
	require.Equal(t, "returned 503 Service Unavailable", w.Message(id).LastError)
	cluster.MakeDue(w)
	require.Equal(t, first, shop.Event(t, 2, signing.Secret))
	w.WaitMessage(id, "received")

	confirm := true
	id = w.Save(shop.URL, func(r *api.MessageRequest) { r.Confirm = &confirm })
	w.WaitMessage(id, "sent") // a 2xx does not confirm it
	require.NoError(t, w.Client.ConfirmMessage(t.Context(), id))
	require.Equal(t, "received", w.Message(id).State)
}

func TestInboxReceivesMessagesToURL(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	points, effects := cluster.NewPointsService(w)
	service := httptest.NewServer(points)
	t.Cleanup(service.Close)
	for n, confirm := range []bool{false, true} {
		w.WaitMessage(w.Save(service.URL, func(r *api.MessageRequest) { r.Confirm = &confirm }), "received")
		require.Equal(t, n+1, effects())
	}
}

func TestPrivateAddressesAreNotCalled(t *testing.T) {
	t.Parallel()
	w := cluster.New(t, "SENDONCE_SAFETY_TICK=1s")
	w.StartWithoutTrigger()
	private := cluster.NewReceiver(t, nil)
	w.AddEndpoint(private.URL) // while the settings allow loopback
	_, err := w.Process(cluster.All).Terminate(cluster.WaitLimit)
	require.NoError(t, err)
	w.StartAll(cluster.NoLoopback)
	w.FinishTask()
	w.Admin.WaitCount(1, `select count(*) from webhook_deliveries where jsonb_array_length(tries) = 1`)
	d := cluster.WaitDeliveries(w, "pending", 1)[0]
	require.Contains(t, d.Tries[0].Error, "SENDONCE_OUTGOING_NETWORKS")
	require.Zero(t, private.Calls())
}

func TestPoisonEventBecomesADeadLetterAlone(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	shop := cluster.NewReceiver(t, nil)
	secret := w.AddEndpoint(shop.URL).Secret
	require.Equal(t, w.FinishTask(), shop.Event(t, 1, secret).Subject) // now the streams exist
	poison := func(id, subject, data string) {
		m := nats.NewMsg("evt.task.succeeded")
		for name, value := range map[string]string{
			"ce-specversion": "1.0", "ce-id": id, "ce-source": "/sendonce", "ce-type": "sendonce.task.succeeded.v1", "ce-subject": subject,
			"content-type": "application/json",
		} {
			m.Header.Set(name, value)
		}
		m.Data = []byte(data)
		_, err := w.JetStream().PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	poison("p1", "no-id", `{}`)
	poison("p2", "018f0000-0000-7000-8000-000000000000", `{}`)
	poison("p3", "018f0000-0000-7000-8000-000000000000", `{"broken`)
	poison("p4", "018f0000-0000-7000-8000-000000000000", "\"\xff\"")
	id := w.FinishTask()
	require.Equal(t, id, shop.Event(t, 2, secret).Subject)
	w.Admin.WaitCount(4, `select count(*) from dead_letters`)
	for _, letter := range w.Admin.Get("/api/v1/admin/dead-letters").Items() {
		require.Equal(t, "deliver", letter["function"])
		require.NotEmpty(t, letter["reason"])
	}
	require.Equal(t, 2, shop.Calls())
}

// newHangingReceiver returns a receiver that does not respond to the first call until the test ends.
func newHangingReceiver(t *testing.T) *cluster.Receiver {
	ended := make(chan struct{})
	hanging := cluster.NewReceiver(t, func(n int, _ http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			<-ended
		}
	})
	t.Cleanup(func() { close(ended) })
	return hanging
}

func TestKilledDeliverRepeatsTheSameEvent(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	shop := newHangingReceiver(t)
	secret := w.AddEndpoint(shop.URL).Secret
	w.FinishTask()
	first := shop.Event(t, 1, secret)
	require.NoError(t, w.Process(cluster.All).Kill())
	cluster.MakeDue(w) // as if the lease had ended
	w.StartAll()
	require.Equal(t, first, shop.Event(t, 2, secret))
	w.Admin.WaitCount(1, `select count(*) from webhook_deliveries where state = 1`)
	require.Equal(t, 2, shop.Calls())
}

// Only the wake-up at the end of the lease can repeat the delivery: the safety tick is an hour away.
func TestKilledDeliverRepeatsAfterItsLease(t *testing.T) {
	t.Parallel()
	sandbox.OnlyWithFaults(t)
	c := cluster.New(t).StartEach("SENDONCE_WEBHOOK_TIMEOUT=1s", "SENDONCE_SAFETY_TICK=1h")
	shop := newHangingReceiver(t)
	secret := c.AddEndpoint(shop.URL).Secret
	finished := c.FinishTasks(1)
	first := shop.Event(t, 1, secret)
	killed := time.Now()
	require.NoError(t, c.Process("deliver").Kill())
	c.StartFunctions("deliver")
	cluster.Eventually(t, func() bool { return shop.Calls() == 2 }, "delivered again")
	t.Logf("delivered again %v after the kill", time.Since(killed).Round(time.Millisecond))
	require.Equal(t, first, shop.Event(t, 2, secret))
	cluster.WaitAllDelivered(c, 1)
	require.Equal(t, 2, shop.Calls())
	require.Equal(t, finished[0], first.Subject)
}
