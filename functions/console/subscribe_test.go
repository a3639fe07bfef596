package console_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/task"
)

func TestSubscribePages(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop := s.NewCaller("shop", "submitter")
	one := fmt.Sprint(s.Subscribe(cluster.Booking(1, "")).Data("id"))
	s.NewWeChatSender().Send(task.Report{Outcome: task.SentOK})
	two := fmt.Sprint(shop.Subscribe(strings.ReplaceAll(cluster.Booking(2, ""), "瑜伽课", "secretmark")).Data("id"))
	s.Exec(`update subscribe_message_logs set send_status = 2, error_code = '47003', error_message = $1, template_type = $2 where id = $3::text::bigint`, hostile, "<b>TYPE</b>", two)
	b := logIn(t, s)

	t.Run("list by filters", func(t *testing.T) {
		b.get("/console/subscribe").has(t, "/console/subscribe/"+one, "/console/subscribe/"+two, hostileShown, "&lt;b&gt;TYPE&lt;/b&gt;")
		for query, listed := range map[string][2]bool{ // one, two
			"send_status=2": {false, true}, "template_type=BOOKING_CONFIRM": {true, false}, "business_type=course_booking": {true, true}, "from=1h": {true, true}, "to=1h": {false, false}, "receiver_user_id=7": {false, false},
		} {
			got := b.get("/console/subscribe?" + query)
			require.Equal(t, 200, got.status, query)
			require.Equal(t, listed, [2]bool{strings.Contains(got.text, "/subscribe/"+one+`"`), strings.Contains(got.text, "/subscribe/"+two+`"`)}, query)
		}
		got := b.get("/console/subscribe?from=yesterday&receiver_user_id=%22%3E")
		require.Equal(t, 400, got.status)
		got.has(t, `value="yesterday"`, `value="&#34;&gt;"`, `<span class="wrong">`)
	})
	t.Run("show one, reveal its contents", func(t *testing.T) {
		got := b.get("/console/subscribe/" + two)
		got.has(t, hostileShown, "47003", "course_booking 2")
		require.NotContains(t, got.text, "secretmark")
		got = b.submit("/console/subscribe/" + two + "/reveal")
		got.has(t, "secretmark", `data-address="/console/subscribe/`+two+`"`)
		require.Equal(t, 1, s.Count(`select count(*) from operator_actions where action = 'task.reveal'`))
		require.Equal(t, 404, b.get("/console/subscribe/999").status)
	})
	t.Run("send again", func(t *testing.T) {
		path := "/console/subscribe/" + one
		b.get(path).has(t, "although it was sent")
		got := b.submit(path+"/resend", "force", "yes", "reason", strings.Repeat("x", 501))
		require.Equal(t, 400, got.status)
		got.has(t, `<span class="wrong">`, `value="yes" required checked`, `data-address="`+path+`"`)
		require.Equal(t, 409, b.submit(path+"/resend", "reason", "asked").status, "the message was sent")
		b.submit(path+"/resend", "force", "yes", "reason", "asked").has(t, "The subscribe message is sent again.")
		require.Len(t, s.Get(cluster.SubscribePath+one).Data("sends"), 2)
	})
	t.Run("show a send whose task was deleted, without its contents", func(t *testing.T) {
		deleted := s.QueryText(`select task_id::text from subscribe_message_sends where log_id = $1 order by created_at limit 1`, one)
		s.Exec(`delete from task_done where id = $1`, deleted)
		s.Exec(`delete from tasks where id = $1`, deleted)
		got := b.get("/console/subscribe/" + one)
		got.has(t, "/console/tasks/")
		require.NotContains(t, got.text, deleted)
		b.submit("/console/subscribe/"+one+"/reveal").has(t, "/console/tasks/")
	})
	t.Run("count by type", func(t *testing.T) {
		b.get("/console/subscribe/statistics").has(t, "BOOKING_CONFIRM", "&lt;b&gt;TYPE&lt;/b&gt;", "0.00 %")
		b.get("/console/subscribe/statistics?since=1d").has(t, "BOOKING_CONFIRM")
		require.Equal(t, 400, b.get("/console/subscribe/statistics?since=x").status)
		s.Exec(`insert into task_totals (day, succeeded, failed, subscribe_succeeded, subscribe_failed) values (current_date - 3, 0, 0, 0, 0)`)
		s.Exec(`insert into subscribe_totals (day, caller_id, template_type, total, success, failed) values (current_date - 3, 0, '', 7, 7, 0)`)
		b.get("/console/subscribe/statistics").has(t, "Other types", "100.00 %")
	})
	t.Run("resume a template", func(t *testing.T) {
		s.Exec(`insert into template_pauses (template_id, caller_id, strikes, paused_at, reason) select $1::text, id, 3, now(), $1::text from callers where name = 'shop'`, "tmpl/"+hostile)
		b.get("/console/subscribe/templates").has(t, "tmpl/"+hostileShown, "paused", "shop")
		caller := s.QueryText(`select id::text from callers where name = 'shop'`)
		got := b.submit("/console/subscribe/templates/resume", "form", "resume "+caller+" tmpl/"+hostile, "template_id", "tmpl/"+hostile, "caller_id", caller)
		require.Equal(t, 400, got.status)
		got.has(t, `<span class="wrong">is required`)
		b.submit("/console/subscribe/templates/resume", "template_id", "tmpl/"+hostile, "caller_id", caller, "reason", "repaired").has(t, "The template is resumed. Messages that are due now: 0.", "No template has errors.")
	})
	t.Run("show a viewer all messages, a submitter its own", func(t *testing.T) {
		viewer := logIn(t, s.NewCaller("viewer", "viewer"))
		viewer.get("/console/subscribe").has(t, "/console/subscribe/"+one, "/console/subscribe/templates")
		require.NotContains(t, viewer.get("/console/subscribe/"+two).text, `/resend"`)
		require.Equal(t, 403, viewer.submit("/console/subscribe/"+two+"/resend").status)
		viewer.submit("/console/subscribe/"+two+"/reveal").has(t, "secretmark")
		submitter := logIn(t, shop)
		got := submitter.get("/console/subscribe")
		got.has(t, "/console/subscribe/"+two)
		require.NotContains(t, got.text, "/console/subscribe/"+one+`"`)
		require.Equal(t, 404, submitter.get("/console/subscribe/"+one).status)
		require.Equal(t, 404, submitter.submit("/console/subscribe/"+one+"/reveal").status)
	})
}
