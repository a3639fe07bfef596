package console_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// tokenOf returns the token that a page shows.
func tokenOf(t *testing.T, got shown) string {
	t.Helper()
	got.has(t, "This is the new token.")
	require.Equal(t, "no-store", got.header.Get("Cache-Control"))
	token := between(t, got.text, `data-copy="`, `"`)
	require.Regexp(t, `^[A-Za-z0-9_-]{43}$`, token)
	return token
}

func TestCallers(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s)
	b.get("/console/callers").has(t, "There are no callers besides the built-in admin.")
	b.get("/console/callers/new").has(t, `value="viewer"`, `value="trigger"`)

	token := tokenOf(t, b.submit("/console/callers/new", "name", "shop", "roles", "submitter", "roles", "viewer", "queues", "otp\r\n\r\n promo ",
		"business_types", hostile, "receives", "msg.orders.>", "max_waiting_tasks", "500", "best_priority", "3"))
	id := s.QueryText(`select id::text from callers where name = 'shop'`)
	page := "/console/callers/" + id
	require.NotContains(t, b.get(page).text, token)

	t.Run("are shown with their rights", func(t *testing.T) {
		b.get("/console/callers").has(t, `href="`+page+`"`, "submitter, viewer", "otp, promo", "msg.orders.&gt;")
		got := b.get(page)
		got.has(t, "otp\npromo</textarea>", hostileShown+"</textarea>", `name="max_waiting_tasks" value="500"`, `<option selected>3`, `value="viewer" checked`)
		require.NotContains(t, got.text, `value="admin" checked`)
		require.NotContains(t, got.text, "<script>alert")
	})
	t.Run("are changed", func(t *testing.T) {
		b.submit(page, "roles", "sender", "queues", "", "best_priority", "0").has(t, "Saved.", `value="sender" checked`)
		require.Equal(t, 1, s.Count(`select count(*) from callers where name = 'shop' and roles = '{sender}' and queues = '{}' and business_types = '{}' and max_waiting_tasks is null and best_priority = 0`))
	})
	t.Run("show a refused form again", func(t *testing.T) {
		got := b.submit(page, "roles", "sender", "queues", "good\nb<d", "max_waiting_tasks", "-1", "receives", hostile)
		require.Equal(t, 400, got.status)
		got.has(t, "good\nb&lt;d</textarea>", hostileShown+"</textarea>", `value="-1"`, `<details open>`)
		b.submit(page, "queues", "").has(t, `<span class="wrong">choose at least one role`)
		b.submit(page, "roles", "sender", "max_waiting_bytes", "many").has(t, `value="many"`, `<span class="wrong">must be a whole number`)
		got = b.submit("/console/callers/new", "name", "shop", "roles", "sender")
		require.Equal(t, 409, got.status)
		got.has(t, `value="shop"`, `value="sender" checked`)
	})
	t.Run("are given a new token", func(t *testing.T) {
		fresh := tokenOf(t, b.submit(page+"/rotate"))
		require.NotEqual(t, token, fresh)
		shop := *s
		shop.User, shop.Password = "shop", fresh
		require.Equal(t, 200, shop.Get("/api/v1/sms/tasks/pending?app_id=a").Status)
	})
	t.Run("see their own new token once, and must log in again", func(t *testing.T) {
		boss := s.NewCaller("boss", "admin")
		v := logIn(t, boss)
		own := "/console/callers/" + s.QueryText(`select id::text from callers where name = 'boss'`)
		boss.Password = tokenOf(t, v.submit(own+"/rotate"))
		require.Contains(t, v.get(own).path, "/console/login")
		logIn(t, boss).get(own).has(t, "boss")
	})
	t.Run("are revoked after their name was typed", func(t *testing.T) {
		got := b.submit(page+"/revoke", "form", "revoke", "confirm", "shop2")
		require.Equal(t, 400, got.status)
		got.has(t, `value="shop2"`, "must be the name of the caller: shop")
		require.Zero(t, s.Count(`select count(*) from callers where revoked_at is not null`))
		got = b.submit(page+"/revoke", "form", "revoke", "confirm", "shop")
		got.has(t, "The caller is revoked.", `<span class="state revoked">`)
		require.NotContains(t, got.text, "Replace the token")
	})
	t.Run("are read and not changed by a viewer", func(t *testing.T) {
		v := logIn(t, s.NewCaller("viewer", "viewer"))
		require.NotContains(t, v.get("/console/callers").text, "/console/callers/new")
		require.NotContains(t, v.get(page).text, `action="/console/callers`)
		s.NewCallerWith("limited", `"roles":["sender"],"max_waiting_tasks":12000`)
		v.get("/console/callers/"+s.QueryText(`select id::text from callers where name = 'limited'`)).has(t, "Maximum of unfinished tasks", "<dd>12,000</dd>")
		require.Equal(t, 403, v.submit(page+"/rotate").status)
		require.Equal(t, 403, v.submit("/console/callers/new", "name", "x", "roles", "sender").status)
	})
	t.Run("of others are hidden from an operator with queues", func(t *testing.T) {
		v := logIn(t, s.NewCallerWith("ops", `"roles":["admin","sender"],"queues":["otp"]`))
		tokenOf(t, v.submit("/console/callers/new", "name", "ops.phone", "roles", "sender", "queues", "otp", "best_priority", "0"))
		got := v.get("/console/callers")
		got.has(t, "ops.phone")
		require.NotContains(t, got.text, "shop")
		require.Equal(t, 404, v.get(page).status)
		require.Equal(t, 403, v.submit("/console/callers/new", "name", "ops.all", "roles", "sender").status, "a caller without queues may use all, and ops may grant only its own")
	})
}

func TestCallersAreShownByName(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop := s.NewCaller("shop", "submitter") // id 1
	shopTask, adminTask := shop.SubmitTo("default"), s.SubmitTo("default")
	shop.Post("/api/v1/webhooks/endpoints", `{"url":"https://shop.example.com/a"}`)
	b := logIn(t, s.NewCaller("viewer", "viewer"))
	b.get("/console/tasks/"+shopTask).has(t, `<a href="/console/callers/1">shop</a>`)
	b.get("/console/tasks/"+adminTask).has(t, "<dd>"+s.User+" ·")
	b.get("/console/webhooks").has(t, `<a href="/console/callers/1">shop</a>`)
	logIn(t, shop).get("/console/tasks/"+shopTask).has(t, "<dd>shop</dd>")

	for _, query := range []string{"caller=shop", "caller_id=1"} {
		got := b.get("/console/tasks?" + query)
		got.has(t, shopTask, `name="caller" value="shop"`)
		require.NotContains(t, got.text, adminTask)
	}
	b.get("/console/tasks?caller="+s.User).has(t, adminTask)
	b.get("/console/tasks?caller=1").has(t, shopTask)
	for _, list := range []string{"tasks", "webhooks/deliveries", "subscribe"} {
		got := b.get("/console/" + list + "?caller=%3Cb%3E")
		require.Equal(t, 400, got.status)
		got.has(t, "there is no caller of this name", `value="&lt;b&gt;"`)
		require.NotContains(t, logIn(t, shop).get("/console/"+list).text, `name="caller"`, "a submitter sees only its own")
	}
	logIn(t, s).get("/console/bulk/new?state=pending&caller=shop").has(t, `caller_id=1`, `<a href="/console/callers/1">shop</a>`, "1 tasks match")
}
