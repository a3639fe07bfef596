package console_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestRefusedFormsAreShownAgain(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s)
	t.Run("a filter", func(t *testing.T) {
		got := b.get("/console/tasks?phone_number=x%22%3E%3Cb%3E&from=yesterday&queue=promo")
		require.Equal(t, 400, got.status)
		got.has(t, `value="x&#34;&gt;&lt;b&gt;"`, `value="yesterday"`, `value="promo"`, `<code>from</code>`, `<span class="wrong">`)
	})
	t.Run("the form of a button", func(t *testing.T) {
		sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hello"}`)
		path := "/console/tasks/" + sent.Data("task_id").(string)
		long := strings.Repeat("<", 501)
		got := b.submit(path+"/cancel", "reason", long)
		require.Equal(t, 400, got.status)
		got.has(t, `value="`+strings.Repeat("&lt;", 501)+`"`, `<span class="wrong">`, "Cancel the task")
		require.Equal(t, 409, b.submit(path+"/retry").status, "the task has not failed")
	})
	t.Run("with a field as large as a form may be", func(t *testing.T) {
		b.submit("/console/blocked-words", "word", strings.Repeat("a", 60_000)).has(t, `<span class="wrong">is required: 1 to 100 characters`)
	})
	t.Run("as one problem if the page of the form cannot be shown", func(t *testing.T) {
		got := b.submit("/console/tasks/018c24d2-2100-7a5e-9b1f-3c6d5e4f7a81/retry")
		require.Equal(t, 404, got.status)
		require.Equal(t, 1, strings.Count(got.text, `class="problem"`), got.text)
	})
}
