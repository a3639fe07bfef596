package console_test

import (
	"html"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestQueues(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.SubmitTo("otp")
	b := logIn(t, s)

	t.Run("are paused and resumed", func(t *testing.T) {
		b.get("/console/queues").has(t, `href="/console/tasks?queue=otp&amp;state=pending">1<`, "Pause queue otp?")
		got := b.submit("/console/queues/pause", "form", "pause otp", "queue", "otp", "reason", hostile, "until", "2h")
		require.Equal(t, "/console/queues?done=queue_paused", got.path)
		got.has(t, "The queue is paused.", hostileShown, "in 119 min")
		require.NotContains(t, got.text, "<script>alert")
		got = b.submit("/console/queues/resume", "form", "resume otp", "queue", "otp", "reason", "repaired")
		got.has(t, "The queue is resumed.")
		require.Equal(t, 1, s.Count(`select count(*) from operator_actions where action = 'queue.resume' and subject = 'queue/otp' and reason = 'repaired'`))
	})
	t.Run("without tasks can be paused", func(t *testing.T) {
		b.submit("/console/queues/pause", "queue", "marketing", "reason", "too early").has(t, "too early", "until it is resumed")
	})
	t.Run("show a refused form again", func(t *testing.T) {
		got := b.submit("/console/queues/pause", "form", "pause otp", "queue", "otp", "reason", "", "until", "2020-01-01T00:00+08:00")
		require.Equal(t, 400, got.status)
		got.has(t, `<details open><summary>Pause</summary>`, `value="2020-01-01T00:00&#43;08:00"`, `<span class="wrong">must be in the future`, `<span class="wrong">is required: 1 to 500`, `data-address="/console/queues"`)
		got = b.submit("/console/queues/pause", "queue", hostile, "reason", hostile, "until", hostile)
		got.has(t, `name="queue" value="`+hostileShown+`"`, `name="reason" value="`+hostileShown+`"`, `name="until" value="`+hostileShown+`"`, "must be a time with its zone")
		require.NotContains(t, got.text, "<script>alert")
		b.submit("/console/queues/pause", "queue", "../x", "reason", "r").has(t, "A-Z a-z 0-9")
	})
	t.Run("show the current pause in the form", func(t *testing.T) {
		b.submit("/console/queues/pause", "queue", "later", "reason", "night <b>", "until", "2h")
		got := b.get("/console/queues")
		got.has(t, `name="reason" value="night &lt;b&gt;"`)
		until := regexp.MustCompile(`name="until" value="(\d{4}-[^"]+)"`).FindStringSubmatch(got.text)
		require.NotNil(t, until)
		b.submit("/console/queues/pause", "queue", "later", "reason", "night", "until", html.UnescapeString(until[1])).has(t, "The queue is paused.")
		b.submit("/console/queues/resume", "queue", "later", "reason", "morning")
	})
	t.Run("have no buttons for a viewer", func(t *testing.T) {
		v := logIn(t, s.NewCaller("viewer", "viewer"))
		got := v.get("/console/queues")
		got.has(t, "otp")
		require.NotContains(t, got.text, "<details")
		require.Equal(t, 403, v.submit("/console/queues/pause", "queue", "otp", "reason", "r").status)
	})
	t.Run("are hidden from a viewer limited to other queues", func(t *testing.T) {
		v := logIn(t, s.NewCaller("limited", "viewer", "marketing"))
		got := v.get("/console/queues")
		got.has(t, "marketing")
		require.NotContains(t, got.text, "otp")
		for _, path := range []string{"default-sms", "blocked-words", "dead-letters", "audit"} {
			require.NotContains(t, got.text, `"/console/`+path+`"`)
			require.Equal(t, 403, v.get("/console/"+path).status)
		}
		for _, path := range []string{"templates", "callers", "alerts"} {
			require.Equal(t, 200, v.get("/console/"+path).status)
		}
	})
	t.Run("are hidden from an admin limited to other queues", func(t *testing.T) {
		v := logIn(t, s.NewCaller("ops", "admin", "marketing"))
		got := v.get("/console/queues")
		got.has(t, "marketing")
		require.NotContains(t, got.text, "otp")
		v.submit("/console/queues/pause", "queue", "otp", "reason", "r").has(t, "this caller may not use queue otp")
	})
}
