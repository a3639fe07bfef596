package functions

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/task"
)

func getting(path string) call       { return call{method: "GET", path: path} }
func posting(path, body string) call { return call{method: "POST", path: path, body: body} }

// sends makes an attack of one call again and again.
func sends(c func(o *target, worker int) call) func(o *target, worker int) error {
	return func(o *target, worker int) error { return o.as(c(o, worker)) }
}

func alone(want int, c call) func(*target) (int, call) {
	return func(*target) (int, call) { return want, c }
}

const (
	submitOne   = `{"phone_number":"13800138000","content":"hi"}`
	batchPath   = "/api/v1/sms/send/batch"
	nobodysTask = `{"task_id":"01890000-0000-7000-8000-000000000000","app_id":"a","status":2}`
)

func batchOf(item string, n int) string {
	return `{"items":[` + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + `]}`
}

func attacks() []attack {
	submitQuiet := alone(200, posting("/api/v1/sms/send", submitOne))
	reportQuiet := alone(404, posting("/api/v1/sms/report", nobodysTask))
	return []attack{
		{name: "largest batch", function: "submit", quiet: submitQuiet,
			prepare: func(o *target) {
				o.body = batchOf(fmt.Sprintf(`{"phone_number":"13800138000","content":%q,"callback_url":%q,"metadata":{"m":%q},"source":"s"}`,
					strings.Repeat("你", 200), "https://example.com/"+strings.Repeat("c", 1980), strings.Repeat("m", 4096-8)), 1000)
			},
			once: sends(func(o *target, _ int) call { return posting(batchPath, o.body) })},
		{name: "half-sent bodies", function: "submit", quiet: submitQuiet, once: halfSent(batchPath, 8<<20)},
		{name: "batch of bad fields", function: "submit", quiet: submitQuiet,
			prepare: func(o *target) {
				var item strings.Builder
				for i := range 200 {
					fmt.Fprintf(&item, `,"%s%03d":1`, strings.Repeat("b", 20), i)
				}
				o.body = batchOf("{"+item.String()[1:]+"}", 1000)
			},
			once: sends(func(o *target, _ int) call { return posting(batchPath, o.body) })},
		{name: "batch of many items", function: "submit", quiet: submitQuiet,
			prepare: func(o *target) { o.body = batchOf("1", 4<<20-100) },
			once:    sends(func(o *target, _ int) call { return posting(batchPath, o.body) })},
		{name: "batch of unused parameters", function: "submit", quiet: submitQuiet,
			prepare: func(o *target) {
				o.db.exec(`insert into sms_templates (template_name, template_content) values ('t', 'hi')`)
				params := map[string]any{}
				for i := range 100 {
					params[fmt.Sprintf("%03d%s", i, strings.Repeat("p", 60))] = 1
				}
				text, _ := json.Marshal(map[string]any{"phone_number": "13800138000", "template_name": "t", "params": params})
				o.body = batchOf(string(text), 1000)
			},
			once: sends(func(o *target, _ int) call { return posting(batchPath, o.body) })},
		{name: "deep JSON", function: "submit", quiet: submitQuiet,
			prepare: func(o *target) {
				o.body = `{"items":[` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + strings.Repeat(`,{"a":{"a":{"a":{"a":{}}}}}`, 250_000) + `]}`
			},
			once: sends(func(o *target, _ int) call { return posting(batchPath, o.body) })},
		{name: "one large item", function: "submit", quiet: submitQuiet,
			prepare: func(o *target) {
				var params strings.Builder
				for i := range 600_000 {
					fmt.Fprintf(&params, `,"%d":1`, i)
				}
				o.body = batchOf(`{"phone_number":"13800138000","params":{`+params.String()[1:]+`}}`, 1)
			},
			once: sends(func(o *target, _ int) call { return posting(batchPath, o.body) })},
		{name: "huge queries and headers", function: "submit", quiet: submitQuiet, small: true,
			once: sends(func(*target, int) call {
				c := getting("/api/v1/sms/by-key/k?" + strings.Repeat("a=b&", 2900))
				c.header = []string{"X-Filler", strings.Repeat("x", 3000)}
				return c
			})},
		{name: "largest report batch", function: "report", quiet: reportQuiet,
			prepare: func(o *target) {
				o.body = `{"app_id":"a","items":[` + strings.TrimSuffix(strings.Repeat(fmt.Sprintf(
					`{"task_id":"01890000-0000-7000-8000-000000000000","status":3,"error_message":%q},`, strings.Repeat("é", 4000)), 1000), ",") + `]}`
			},
			once: sends(func(o *target, _ int) call { return posting("/api/v1/sms/report/batch", o.body) })},
		{name: "large reports", function: "report", quiet: reportQuiet,
			prepare: func(o *target) {
				o.body = fmt.Sprintf(`{"task_id":"01890000-0000-7000-8000-000000000000","app_id":"a","status":3,"error_message":%q}`, strings.Repeat("é", 500_000))
			},
			once: sends(func(o *target, _ int) call { return posting("/api/v1/sms/report", o.body) })},
		{name: "pages of a conversation", function: "messages", quiet: messageQuiet(), prepare: (*target).conversation,
			once: sends(func(*target, int) call { return getting("/api/v1/messages?between=mallory,bob&limit=200") })},
		{name: "unread pages", function: "messages", quiet: messageQuiet(), prepare: (*target).conversation,
			once: unread("/api/v1/messages?between=mallory,bob&limit=200")},
		{name: "large messages", function: "messages", quiet: messageQuiet(),
			prepare: func(o *target) { o.body = strings.Repeat("m", 64<<10-2) },
			once: sends(func(o *target, _ int) call {
				return posting("/api/v1/messages", fmt.Sprintf(`{"client_msg_id":"%s","to":"user:bob","data":"%s"}`, task.NewID(), o.body))
			})},
		{name: "lists of subscribe messages", function: "subscribe",
			quiet: alone(200, getting("/api/v1/subscribe/statistics")),
			prepare: func(o *target) {
				o.db.exec(`insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
					send_status, caller_id, task_id) select 't', 't', 'b', 1, n, 'o', jsonb_build_object('thing1', jsonb_build_object('value', repeat(md5(n::text), 1900))), 2,
					(select id from callers where name = 'mallory'), gen_random_uuid() from generate_series(1, 200) n`)
			},
			once: sends(func(_ *target, worker int) call {
				return getting([]string{"/api/v1/subscribe/logs?business_type=b&business_id=1&limit=200", "/api/v1/subscribe/failures?limit=200"}[worker%2])
			})},
		{name: "lists of deliveries", function: "webhooks", quiet: alone(200, getting("/api/v1/webhooks/endpoints")),
			prepare: func(o *target) {
				o.db.exec(`insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url, payload, state, next_at, finished_at, tries)
					select gen_random_uuid(), n::text, gen_random_uuid(), (select id from callers where name = 'mallory'), 'e', gen_random_uuid(), 'https://x', repeat('p', 60000), 1, null, now(), tries
					from (select jsonb_agg(jsonb_build_object('at', now(), 'status', 500, 'duration_ms', 1, 'error', repeat(md5(i::text), 15), 'response', repeat(md5(i::text), 128))) tries
					from generate_series(1, 50) i) t, generate_series(1, 200) n`)
			},
			once: sends(func(*target, int) call { return getting("/api/v1/webhooks/deliveries?limit=200") })},
		{name: "lists of dead letters", function: "admin", quiet: alone(200, getting("/api/v1/admin/alerts")),
			prepare: func(o *target) {
				o.db.exec(`insert into dead_letters (function, event_id, event_type, event, reason, attempts) select 'f', n::text, 't', repeat(md5(n::text), 2048), 'r', 1 from generate_series(1, 200) n`)
				o.db.exec(`insert into operator_actions (caller_id, caller_name, request_id, action, subject, before) select 1, 'c', 'r', 'a', 's', to_jsonb(repeat(md5(n::text), 2048)) from generate_series(1, 200) n`)
			},
			once: sends(func(_ *target, worker int) call {
				return getting([]string{"/api/v1/admin/dead-letters?limit=200", "/api/v1/admin/actions?limit=200"}[worker%2])
			})},
		{name: "largest claims", function: "claim", quiet: alone(200, getting("/api/v1/sms/tasks/pending?app_id=n&queue=quiet")),
			prepare: func(o *target) {
				o.db.exec(`insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
					select gen_random_uuid(), 1, 'default', 5, 3, 0, '13800138000', repeat('😀', 200) from generate_series(1, $1)`, 500*attackWidth)
				o.db.exec(`insert into task_live (id, state, priority, max_retries, on_unknown, queue) select id, 1, 5, 3, 0, queue from tasks`)
			},
			once: sends(func(*target, int) call { return getting("/api/v1/sms/tasks/pending?app_id=a&limit=1000") })},
		{name: "batches of events", function: "save", quiet: alone(204, call{method: "POST", path: "/events/save", body: "[]", kind: "application/cloudevents-batch+json"}),
			prepare: func(o *target) {
				o.body = "[" + strings.TrimSuffix(strings.Repeat(fmt.Sprintf(`{"specversion":"1.0","id":"x","source":"s","type":"sendonce.message.accepted.v1","data":{"d":%q}},`, strings.Repeat("d", 64<<10)), 63), ",") + "]"
			},
			once: sends(func(o *target, _ int) call {
				return call{method: "POST", path: "/events/save", body: o.body, kind: "application/cloudevents-batch+json"}
			})},
		{name: "relay of large messages", function: "relay", quiet: alone(200, getting("/healthz")), prepare: (*target).due,
			once: sends(func(*target, int) call { return call{method: "POST", path: "/events/relay", header: tick("relay")} })},
		{name: "posts of large messages", function: "deliver", quiet: alone(200, getting("/healthz")), prepare: (*target).dueToURL,
			once: sends(func(*target, int) call { return call{method: "POST", path: "/events/deliver", header: tick("deliver")} })},
		{name: "streams of large messages", function: "stream", quiet: alone(400, getting("/api/v1/stream/ann?after=-1")), prepare: (*target).inbox, once: replay},
		{name: "frames of a WebSocket", function: "stream", quiet: alone(400, getting("/api/v1/stream/ann?after=-1")),
			prepare: func(o *target) { o.body = strings.Repeat("m", 64<<10-2) }, once: frames},
	}
}

func tick(function string) []string {
	return []string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/test", "ce-type", "sendonce.tick." + function + ".v1"}
}

// halfSent announces bodies and sends all of each but its end.
func halfSent(path string, size int) func(o *target, worker int) error {
	return func(o *target, _ int) error {
		conn, err := net.Dial("tcp", strings.TrimPrefix(o.url, "http://"))
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
		req, err := http.NewRequestWithContext(context.Background(), "POST", o.url+path, http.NoBody)
		if err != nil {
			return err
		}
		req.SetBasicAuth("mallory", "secret")
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
			path, req.Header.Get("Authorization"), size)
		answered := make(chan int, 1)
		go func() {
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				answered <- 0
				return
			}
			_ = res.Body.Close()
			answered <- res.StatusCode
		}()
		_, _ = io.WriteString(conn, head) // the server may have refused it by then
		_, _ = conn.Write(bytes.Repeat([]byte(" "), size-1))
		o.answers[<-answered].Add(1)
		return nil
	}
}

// unread asks for a page and reads nothing of it for a while.
func unread(path string) func(o *target, worker int) error {
	return func(o *target, _ int) error {
		dialer := net.Dialer{}
		conn, err := dialer.Dial("tcp", strings.TrimPrefix(o.url, "http://"))
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		req, err := http.NewRequestWithContext(context.Background(), "GET", o.url+path, http.NoBody)
		if err != nil {
			return err
		}
		req.SetBasicAuth("mallory", "secret")
		if err := req.Write(conn); err != nil {
			return err
		}
		_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		time.Sleep(time.Second) // the reader that does not read
		res, err := http.ReadResponse(bufio.NewReaderSize(conn, 1<<10), req)
		if err != nil {
			o.answers[0].Add(1)
			return nil
		}
		_ = res.Body.Close()
		o.answers[res.StatusCode].Add(1)
		return nil
	}
}

func messageQuiet() func(*target) (int, call) {
	return func(*target) (int, call) {
		return 200, posting("/api/v1/messages", fmt.Sprintf(`{"client_msg_id":"%s","to":"user:bob","data":"hi"}`, task.NewID()))
	}
}

const insertMessages = `
with m as (
	insert into messages (id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends, expected_receipts)
	select gen_random_uuid(), gen_random_uuid(), 1, $1, n::text, gen_random_uuid(), $2::smallint, $3::text, 't', '"' || repeat(md5(n::text), 2047) || '"', false, 5, 1
	from generate_series(1, $4::integer) n returning id
)`

// conversation makes one of the largest messages.
func (o *target) conversation() {
	o.db.exec(insertMessages+`insert into message_done (id, status, abandoned, remaining_sends, send_no, epoch) select id, 2, false, 0, 1, 1 from m`,
		"mallory", 2, "bob", 400)
}

// due makes the largest messages that wait to be published.
func (o *target) due() {
	o.db.exec(insertMessages+`insert into message_live (id, kind, stream, remaining_sends) select id, 0, 'MESSAGES', 5 from m`, "mallory", 0, "msg.orders.paid", 1500)
}

// dueToURL makes the largest messages that wait to be posted, to a receiver that is slow.
func (o *target) dueToURL() {
	receiver := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(200 * time.Millisecond) // a slow receiver holds what is posted to it
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/plain")
		for range 100 {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(o.t, err)
	o.t.Cleanup(func() { _ = receiver.Close() })
	go func() { _ = receiver.Serve(l) }()
	for n := range 16 {
		o.db.exec(insertMessages+`insert into message_live (id, kind, lane, remaining_sends) select id, 1, $5::text, 5 from m`, fmt.Sprint("mallory", n), 1,
			"http://"+l.Addr().String(), 40, fmt.Sprint(n, " ", l.Addr()))
	}
}

// inbox fills a user's stream with the largest messages.
func (o *target) inbox() {
	b, err := bus.Open(bus.Config{URL: o.nats.URL(), Replicas: 1}, slog.New(slog.DiscardHandler))
	require.NoError(o.t, err)
	defer b.Close()
	require.NoError(o.t, b.Ensure(o.t.Context()))
	messages := make([]bus.Message, 300)
	for n := range messages {
		e := cloudevents.NewEvent()
		e.SetID(fmt.Sprint(n))
		e.SetSource("/test")
		e.SetType("t")
		require.NoError(o.t, e.SetData(cloudevents.ApplicationJSON, strings.Repeat("m", 64<<10-2)))
		messages[n] = bus.Message{Subject: bus.UserSubject("mallory"), MsgID: fmt.Sprint(n), Event: e}
	}
	for _, err := range b.Publish(o.t.Context(), messages) {
		require.NoError(o.t, err)
	}
}

// replay reads a stream from its beginning.
func replay(o *target, _ int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", o.url+"/api/v1/stream/mallory?after=0", http.NoBody)
	if err != nil {
		return err
	}
	req.SetBasicAuth("mallory", "secret")
	res, err := o.client.Do(req)
	if err != nil {
		o.answers[0].Add(1)
		return nil
	}
	defer res.Body.Close()
	o.answers[res.StatusCode].Add(1)
	_, _ = io.CopyN(io.Discard, res.Body, 4<<20) // ends with ctx otherwise
	return nil
}

// frames sends the largest messages over a WebSocket and reads no answer meanwhile.
func frames(o *target, _ int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", o.url, http.NoBody)
	if err != nil {
		return err
	}
	req.SetBasicAuth("mallory", "secret")
	conn, _, err := websocket.Dial(ctx, o.url+"/api/v1/stream/mallory", &websocket.DialOptions{HTTPHeader: req.Header})
	if err != nil {
		o.answers[0].Add(1)
		return nil
	}
	defer conn.CloseNow()
	for range 50 {
		frame := fmt.Sprintf(`{"client_msg_id":"%s","to":"user:bob","data":"%s"}`, task.NewID(), o.body)
		if err := conn.Write(ctx, websocket.MessageText, []byte(frame)); err != nil {
			break
		}
	}
	o.answers[101].Add(1)
	return nil
}
