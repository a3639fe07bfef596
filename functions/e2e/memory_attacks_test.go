package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func getting(path string) call       { return call{method: "GET", path: path} }
func posting(path, body string) call { return call{method: "POST", path: path, body: body} }

// expecting returns a neighbour that repeats the call c, which must get the status want.
func expecting(want int, c call) func(*target) (int, call) {
	return func(*target) (int, call) { return want, c }
}

const (
	submitOne   = `{"phone_number":"13800138000","content":"hi"}`
	batchPath   = "/api/v1/sms/send/batch"
	unknownTask = `{"task_id":"01890000-0000-7000-8000-000000000000","app_id":"a","status":2}`
)

// repeats returns an attack that repeats the same call.
func repeats(c call) func(o *attacker, worker int) error {
	return sends(func(*attacker, int) call { return c })
}

// postsBody returns an attack that posts the body of the attack.
func postsBody(path string) func(o *attacker, worker int) error {
	return sends(func(o *attacker, _ int) call { return posting(path, o.body) })
}

// ticks returns an attack that sends ticks to an event function.
func ticks(function string) func(o *attacker, worker int) error {
	return repeats(call{method: "POST", path: "/events/" + function, header: cluster.TickHeader})
}

func batchOf(item string, n int) string {
	return `{"items":[` + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + `]}`
}

func attacks() []attack {
	submitting := expecting(200, posting("/api/v1/sms/send", submitOne))
	streaming := expecting(400, getting("/api/v1/stream/ann?after=-1"))
	reporting := expecting(404, posting("/api/v1/sms/report", unknownTask))
	return []attack{
		{name: "largest batch", function: "submit", status: 200, neighbour: submitting,
			body: func() string {
				return batchOf(fmt.Sprintf(`{"phone_number":"13800138000","content":%q,"callback_url":%q,"metadata":{"m":%q},"source":"s"}`,
					strings.Repeat("你", 200), "https://example.com/"+strings.Repeat("c", 1980), strings.Repeat("m", 4096-8)), 1000)
			},
			round: postsBody(batchPath)},
		{name: "half-sent bodies", function: "submit", neighbour: submitting, round: halfSent(batchPath, 8<<20)},
		{name: "batch of bad fields", function: "submit", status: 200, neighbour: submitting,
			body: func() string {
				var item strings.Builder
				for i := range 200 {
					fmt.Fprintf(&item, `,"%s%03d":1`, strings.Repeat("b", 20), i)
				}
				return batchOf("{"+item.String()[1:]+"}", 1000)
			},
			round: postsBody(batchPath)},
		{name: "batch of many items", function: "submit", status: 400, neighbour: submitting,
			body:  func() string { return batchOf("1", 4<<20-100) },
			round: postsBody(batchPath)},
		{name: "batch of unused parameters", function: "submit", status: 200, neighbour: submitting,
			prepare: func(o *target) {
				o.db.Exec(`insert into sms_templates (template_name, template_content) values ('t', 'hi')`)
			},
			body: func() string {
				params := map[string]any{}
				for i := range 100 {
					params[fmt.Sprintf("%03d%s", i, strings.Repeat("p", 60))] = 1
				}
				text, _ := json.Marshal(map[string]any{"phone_number": "13800138000", "template_name": "t", "params": params})
				return batchOf(string(text), 1000)
			},
			round: postsBody(batchPath)},
		{name: "deep JSON", function: "submit", status: 400, neighbour: submitting,
			body: func() string {
				return `{"items":[` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + strings.Repeat(`,{"a":{"a":{"a":{"a":{}}}}}`, 250_000) + `]}`
			},
			round: postsBody(batchPath)},
		{name: "one large item", function: "submit", status: 200, neighbour: submitting,
			body: func() string {
				var params strings.Builder
				for i := range 600_000 {
					fmt.Fprintf(&params, `,"%d":1`, i)
				}
				return batchOf(`{"phone_number":"13800138000","params":{`+params.String()[1:]+`}}`, 1)
			},
			round: postsBody(batchPath)},
		{name: "huge queries and headers", function: "submit", status: 400, neighbour: submitting,
			round: sends(func(*attacker, int) call {
				c := getting("/api/v1/sms/by-key/k?" + strings.Repeat("a=b&", 2900))
				c.header = []string{"X-Filler", strings.Repeat("x", 3000)}
				return c
			})},
		{name: "pipelined unknown paths", function: "submit", status: 404, neighbour: submitting, round: pipelined("/nosuch", 1500)},
		{name: "pipelined calls without credentials", function: "messages", status: 401, neighbour: messaging, round: pipelined("/api/v1/messages/peers", 1500)},
		{name: "largest report batch", function: "report", status: 200, neighbour: reporting,
			body: func() string {
				return `{"app_id":"a","items":[` + strings.TrimSuffix(strings.Repeat(fmt.Sprintf(
					`{"task_id":"01890000-0000-7000-8000-000000000000","status":3,"error_message":%q},`, strings.Repeat("é", 4000)), 1000), ",") + `]}`
			},
			round: postsBody("/api/v1/sms/report/batch")},
		{name: "large reports", function: "report", status: 404, neighbour: reporting,
			body: func() string {
				return fmt.Sprintf(`{"task_id":"01890000-0000-7000-8000-000000000000","app_id":"a","status":3,"error_message":%q}`, strings.Repeat("é", 500_000))
			},
			round: postsBody("/api/v1/sms/report")},
		{name: "pages of a conversation", function: "messages", status: 200, neighbour: messaging, prepare: (*target).insertConversation,
			round: repeats(getting("/api/v1/messages?between=mallory,bob&limit=200"))},
		{name: "unread pages", function: "messages", status: 200, neighbour: messaging, prepare: (*target).insertConversation,
			round: unread("/api/v1/messages?between=mallory,bob&limit=200")},
		{name: "unread pages of the console", function: "console", status: 200, neighbour: expecting(200, getting("/console/login")),
			prepare: (*target).insertNestedConversation, round: revealsUnread},
		{name: "large messages", function: "messages", status: 200, neighbour: messaging,
			body: func() string { return strings.Repeat("m", 64<<10-2) },
			round: sends(func(o *attacker, _ int) call {
				return posting("/api/v1/messages", fmt.Sprintf(`{"client_msg_id":"%s","to":"user:bob","data":"%s"}`, task.NewID(), o.body))
			})},
		{name: "lists of subscribe messages", function: "subscribe", status: 200,
			neighbour: expecting(200, getting("/api/v1/subscribe/statistics")),
			prepare: func(o *target) {
				o.db.Exec(`insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
					send_status, caller_id, task_id) select 't', 't', 'b', 1, n, 'o', jsonb_build_object('thing1', jsonb_build_object('value', repeat(md5(n::text), 1900))), 2,
					(select id from callers where name = 'mallory'), gen_random_uuid() from generate_series(1, 200) n`)
			},
			round: sends(func(_ *attacker, worker int) call {
				return getting([]string{"/api/v1/subscribe/logs?business_type=b&business_id=1&limit=200", "/api/v1/subscribe/failures?limit=200"}[worker%2])
			})},
		{name: "lists of deliveries", function: "webhooks", status: 200, neighbour: expecting(200, getting("/api/v1/webhooks/endpoints")),
			prepare: func(o *target) {
				o.db.Exec(`insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url, state, next_at, finished_at, tries)
					select gen_random_uuid(), n::text, gen_random_uuid(), (select id from callers where name = 'mallory'), 'e', gen_random_uuid(), 'https://x', 1, null, now(), tries
					from (select jsonb_agg(jsonb_build_object('at', now(), 'status', 500, 'duration_ms', 1, 'error', repeat(md5(i::text), 15), 'response', repeat(md5(i::text), 128))) tries
					from generate_series(1, 50) i) t, generate_series(1, 200) n`)
			},
			round: repeats(getting("/api/v1/webhooks/deliveries?limit=200"))},
		{name: "lists of dead letters", function: "admin", status: 200, role: "admin", neighbour: expecting(200, getting("/api/v1/admin/alerts")),
			prepare: func(o *target) {
				o.db.Exec(`insert into dead_letters (function, event_id, event_type, event, reason, attempts) select 'f', n::text, 't', repeat(md5(n::text), 2048), 'r', 1 from generate_series(1, 200) n`)
				o.db.Exec(`insert into operator_actions (caller_id, caller_name, request_id, action, subject, before) select 1, 'c', 'r', 'a', 's', to_jsonb(repeat(md5(n::text), 2048)) from generate_series(1, 200) n`)
			},
			round: sends(func(_ *attacker, worker int) call {
				return getting([]string{"/api/v1/admin/dead-letters?limit=200", "/api/v1/admin/actions?limit=200"}[worker%2])
			})},
		{name: "largest claims", function: "claim", status: 200, neighbour: expecting(200, getting("/api/v1/sms/tasks/pending?app_id=n&queue=quiet")),
			prepare: func(o *target) {
				o.db.Exec(`insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
					select gen_random_uuid(), 1, 'default', 5, 3, 0, '13800138000', repeat('😀', 200) from generate_series(1, $1)`, 500*attackWidth)
				o.db.Exec(`insert into task_live (id, state, priority, max_retries, on_unknown, queue) select id, 1, 5, 3, 0, queue from tasks`)
			},
			round: repeats(getting("/api/v1/sms/tasks/pending?app_id=a&limit=1000"))},
		{name: "batches of events", function: "save", status: 204, role: "trigger", neighbour: expecting(204, call{method: "POST", path: "/events/save", body: "[]", contentType: "application/cloudevents-batch+json"}),
			body: func() string {
				event := fmt.Sprintf(`{"specversion":"1.0","id":"x","source":"s","type":"sendonce.message.accepted.v1","data":{"d":%q}}`, strings.Repeat("d", 64<<10))
				return "[" + strings.Repeat(event+",", fn.MaxEventBatch/len(event)-1) + event + "]"
			},
			round: sends(func(o *attacker, _ int) call {
				return call{method: "POST", path: "/events/save", body: o.body, contentType: "application/cloudevents-batch+json"}
			})},
		{name: "relay of large messages", function: "relay", status: 204, role: "trigger", neighbour: expecting(200, getting("/healthz")), prepare: (*target).insertDueMessages,
			round: ticks("relay")},
		{name: "relay of large events", function: "relay", status: 204, role: "trigger", neighbour: expecting(200, getting("/healthz")), prepare: (*target).insertDueEvents,
			round: ticks("relay")},
		{name: "posts of large messages", function: "deliver", status: 204, role: "trigger", neighbour: expecting(200, getting("/healthz")), prepare: (*target).insertDuePosts,
			round: ticks("deliver")},
		{name: "large events and messages", function: "wechat", status: 204, role: "trigger", neighbour: expecting(200, getting("/healthz")), prepare: (*target).insertSubscribeMessages,
			body: func() string { return `{"d":"` + strings.Repeat("d", 1<<20-10) + `"}` },
			round: sends(func(o *attacker, _ int) call {
				return call{method: "POST", path: "/events/wechat", body: o.body, header: cluster.TickHeader}
			})},
		{name: "replays of large messages", function: "stream", status: 200, neighbour: streaming, prepare: (*target).fillInbox, round: replay},
		{name: "large frames", function: "stream", status: 101, neighbour: streaming, prepare: (*target).ensureStreams, body: func() string { return strings.Repeat("m", 64<<10-2) }, round: largeFrames},
		{name: "small frames", function: "stream", status: 101, neighbour: streaming, prepare: (*target).ensureStreams, round: smallFrames},
		{name: "pings", function: "stream", status: 101, neighbour: streaming, prepare: (*target).ensureStreams, round: pings},
		{name: "everything at once", neighbour: submitting, memoryOnly: true, together: []string{
			"half-sent bodies", "batch of many items", "batch of bad fields", "largest report batch", "unread pages", "lists of deliveries", "lists of dead letters",
			"largest claims", "batches of events", "posts of large messages", "large events and messages", "replays of large messages", "large frames",
		}},
	}
}

// messaging is a neighbour that submits a new message with each call.
func messaging(*target) (int, call) {
	return 200, posting("/api/v1/messages", fmt.Sprintf(`{"client_msg_id":"%s","to":"user:bob","data":"hi"}`, task.NewID()))
}

const insertMessages = `
with m as (
	insert into messages (id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends, expected_receipts)
	select gen_random_uuid(), gen_random_uuid(), 1, $1, n::text, gen_random_uuid(), $2::smallint, $3::text, 't', '"' || repeat(md5(n::text), 2047) || '"', false, 5, 1
	from generate_series(1, $4::integer) n returning id
)`

// insertConversation inserts a conversation of the largest messages.
func (o *target) insertConversation() {
	o.db.Exec(insertMessages+`insert into message_done (id, status, abandoned, remaining_sends, send_no, epoch) select id, 2, false, 0, 1, 1 from m`,
		"mallory", 2, "bob", 400)
}

// insertNestedConversation inserts a conversation whose data becomes twenty times as long when it is indented.
func (o *target) insertNestedConversation() {
	o.insertConversation()
	o.db.Exec(`update messages set data = repeat('[', 19) || repeat('1,', 32700) || '1' || repeat(']', 19)`)
}

// insertDueMessages inserts the largest messages, which wait to be published.
func (o *target) insertDueMessages() {
	o.db.Exec(insertMessages+`insert into message_live (id, kind, stream, remaining_sends) select id, 0, 'MESSAGES', 5 from m`, "mallory", 0, "msg.orders.paid", 1500)
}

// insertDueEvents inserts the largest events of tasks, which wait to be published.
func (o *target) insertDueEvents() {
	o.db.Exec(`insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, source, metadata)
		select gen_random_uuid(), 1, 'default', 5, 3, 0, '13800138000', 'x', repeat('s', 50), json_build_object('m', repeat('"', 2040)) from generate_series(1, 20000)`)
	o.db.Exec(`insert into task_done (id, status, reason, result, retry_count, ended) select id, 2, 0, repeat('"', 500), 0, 0 from tasks`)
	o.db.Exec(`insert into event_outbox (kind, ids) select 'task.succeeded', array_agg(id) from (select id, row_number() over () / 500 as n from tasks) t group by n`)
}

// insertDuePosts inserts the largest messages, which wait to be posted to a slow receiver.
func (o *target) insertDuePosts() {
	receiver := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(200 * time.Millisecond) // meanwhile the function has the message in memory
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
		sender := fmt.Sprint("mallory", n)
		o.db.Exec(`insert into callers (name, token_hash, roles, queues) values ($1::text, sha256(convert_to($1::text, 'UTF8')), '{submitter}', '{}')`, sender)
		o.db.Exec(insertMessages+`insert into message_live (id, kind, caller_id, destination_key, remaining_sends) select m.id, 1, c.id, c.id || ' a', 5 from m, callers c where c.name::text = $1::text`,
			sender, 1, "http://"+l.Addr().String(), 40)
	}
	// At most a quarter of the posts in flight may be of one caller, so the messages get 16 callers.
	o.db.Exec(`update messages m set caller_id = l.caller_id from message_live l where l.id = m.id`)
}

// ensureStreams makes the streams, as the trigger does.
func (o *target) ensureStreams() {
	require.NoError(o.t, cluster.EnsureStreams(o.t, o.nats.URL()))
}

// fillInbox publishes the largest messages to the inbox of mallory.
func (o *target) fillInbox() {
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

// insertSubscribeMessages inserts the largest subscribe messages, which wait to be sent. WeChat is slow, and its
// responses are as long as the function reads.
func (o *target) insertSubscribeMessages() {
	o.wechat.InjectFault(sandbox.WeChatFault{Delay: 100 * time.Millisecond, Body: `{"errcode":0,"errmsg":"` + strings.Repeat("m", 8000) + `"}`})
	o.db.Exec(`
		with t as (
			insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
			select gen_random_uuid(), 1, 'wechat', 5, 3, 0, '', 'x' from generate_series(1, 2000) returning id
		), live as (
			insert into task_live (id, state, priority, max_retries, on_unknown, queue) select id, 1, 5, 3, 0, 'wechat' from t
		)
		insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data, send_status, caller_id, task_id)
		select 't', 't', 'w', row_number() over (), 1, 'o', jsonb_build_object('thing1', jsonb_build_object('value', repeat(md5(id::text), 1900))), 0, 1, id from t`)
	o.db.Exec(`insert into subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data)
		select task_id, id, 't', 'o', message_data from subscribe_message_logs where business_type = 'w'`)
}
