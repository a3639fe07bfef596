package console_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/message"
)

func TestMessagePages(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	b := logIn(t, s)
	send := func(key string) string {
		got := s.Post(cluster.MessagesPath, fmt.Sprintf(`{"client_msg_id":%q,"to":"orders.paid","type":"order.paid","data":{"secretmark":%q}}`, key, hostile))
		return got.RequireOK().Data("server_msg_id").(string)
	}
	one, two, three := send("one"), send("two"), send("three")
	s.ExhaustSends(message.Sending, one)
	s.ExhaustSends(message.Sending, two)
	s.ExhaustSends(message.Sent, three)
	s.Exec(`update message_live set last_error = $1`, hostile)

	t.Run("list stuck messages: not sent, or sent and not confirmed", func(t *testing.T) {
		got := b.get("/console/messages")
		got.has(t, one, two, hostileShown)
		require.NotContains(t, got.text, three)
		require.NotContains(t, got.text, "secretmark")
		b.get("/console/messages?kind=sent").has(t, three)
		require.NotContains(t, b.get("/console/messages?older_than_seconds=3600").text, one)
		require.Equal(t, 400, b.get("/console/messages?older_than_seconds=x").status)
	})
	t.Run("find one by its key, or say that there is none", func(t *testing.T) {
		require.Contains(t, b.get("/console/messages/by-key?client_msg_id=one&from="+s.User).path, one)
		got := b.get("/console/messages/by-key?client_msg_id=none&from=shop")
		require.Equal(t, 404, got.status)
		got.has(t, "no message of this sender has this key", `value="none"`, `value="shop"`, "Find a message")
		got = b.get("/console/messages/by-key?client_msg_id=none%3Cb%3E")
		require.Equal(t, 400, got.status)
		got.has(t, "must be 1 to 255 characters of A-Z", `value="none&lt;b&gt;"`)
	})
	t.Run("show one, and its data when it is revealed", func(t *testing.T) {
		page := "/console/messages/" + one
		got := b.get(page)
		got.has(t, "order.paid", "orders.paid", hostileShown, "stuck")
		require.NotContains(t, got.text, "secretmark")
		got = b.submit(page + "/reveal")
		got.has(t, "secretmark", `data-address="`+page+`"`)
		require.NotContains(t, got.text, "<script>alert")
		require.Equal(t, 1, s.Count(`select count(*) from operator_actions where action = 'message.reveal' and subject = $1`, one))
		require.Equal(t, 404, b.get("/console/messages/x").status)
		require.Equal(t, page, b.get("/console/messages/by-key?client_msg_id=one").path)
	})
	t.Run("send again and abandon one", func(t *testing.T) {
		b.submit("/console/messages/"+one+"/redrive", "reason", "the receiver is back").has(t, "The message is sent again.")
		require.Equal(t, "sending", s.Get(cluster.MessagesPath+"/"+one).Data("state"))
		got := b.submit("/console/messages/"+one+"/abandon", "form", "abandon", "reason", "")
		require.Equal(t, 400, got.status)
		got.has(t, `<span class="wrong">`)
		b.submit("/console/messages/"+one+"/abandon", "reason", "typo").has(t, "The message is abandoned.", "abandoned")
	})
	t.Run("send again and abandon all that are shown", func(t *testing.T) {
		got := b.submit("/console/messages/stuck/redrive", "ids", two, "ids", three, "back", "/console/messages")
		got.has(t, "Sent again: 2 messages.", "No message is stuck.")
		s.ExhaustSends(message.Sending, two)
		s.ExhaustSends(message.Sending, three)
		got = b.submit("/console/messages/stuck/abandon", "form", "abandon", "ids", two, "ids", three, "back", "https://evil.example")
		require.Equal(t, 400, got.status)
		got.has(t, `<span class="wrong">is required`, `data-address="/console"`)
		got = b.submit("/console/messages/stuck/abandon", "ids", two, "ids", three, "back", "https://evil.example", "reason", "typo")
		require.Equal(t, "/console?done=messages_abandon&n=2", got.path, "the redirect stays in the console")
		got.has(t, "Abandoned: 2 messages.")
	})
	t.Run("show a viewer no buttons", func(t *testing.T) {
		viewer := logIn(t, s.NewCaller("viewer", "viewer"))
		viewer.get("/console/messages/"+one).has(t, "order.paid")
		for _, path := range []string{"/console/messages", "/console/messages/" + one} {
			require.NotContains(t, viewer.get(path).text, `/abandon"`)
		}
		require.Equal(t, 403, viewer.submit("/console/messages/"+one+"/redrive").status)
		viewer.submit("/console/messages/"+one+"/reveal").has(t, "secretmark")
	})
	t.Run("show a submitter only its own messages", func(t *testing.T) {
		shop := s.NewCaller("shop", "submitter")
		own := shop.SendText("bob", "hello")
		submitter := logIn(t, shop)
		require.NotContains(t, submitter.get("/console/messages").text, three)
		submitter.get("/console/messages/"+own).has(t, "user:bob", `peer=bob&amp;user=shop`)
		require.Equal(t, 404, submitter.get("/console/messages/"+one).status)
		require.NotContains(t, submitter.submit("/console/messages/"+one+"/reveal").text, "secretmark")
	})
}

func TestConversationPages(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann, bob := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "submitter")
	for i := range 52 {
		ann.SendText("bob", fmt.Sprint("older-", i))
	}
	bob.Post(cluster.MessagesPath, fmt.Sprintf(`{"client_msg_id":"k","to":"user:ann","data":{"text":%q}}`, "newest-"+hostile))
	const page = "/console/messages/conversations?peer=bob&user=ann"

	b := logIn(t, ann)
	b.get("/console/messages/conversations").has(t, "Wrote to ann", `href="`+"/console/messages/conversations?peer=bob&amp;user=ann"+`"`)
	got := b.get(page)
	got.has(t, "hidden, ", `rel="next"`)
	require.NotContains(t, got.text, "older-")
	require.NotContains(t, got.text, "newest-")
	got = b.submit("/console/messages/conversations/reveal", "user", "ann", "peer", "bob")
	got.has(t, "newest-", "older-51", `data-address="/console/messages/conversations?peer=bob&amp;user=ann"`)
	require.NotContains(t, got.text, "<script>alert")
	require.Equal(t, 50, s.Count(`select count(*) from operator_actions where action = 'message.reveal' and caller_name = 'ann'`))

	cid := logIn(t, s.NewCaller("cid", "submitter"))
	require.Equal(t, 403, cid.get(page).status)
	require.Equal(t, 403, cid.submit("/console/messages/conversations/reveal", "user", "ann", "peer", "bob").status)
	viewer := logIn(t, s.NewCaller("viewer", "viewer"))
	viewer.get(page).has(t, "hidden, ")
	viewer.get("/console/messages/conversations?user=bob").has(t, "Wrote to bob", ">ann</a>")
	bad := viewer.get("/console/messages/conversations?user=ann&peer=%22%3E%3Cb%3E")
	require.Equal(t, 400, bad.status)
	bad.has(t, `value="&#34;&gt;&lt;b&gt;"`)

	t.Run("a user reveals a conversation in the browser", func(t *testing.T) {
		tab := openTab(t, s)
		tab.logIn(ann)
		tab.open(page)
		tab.click(`form[action$="/reveal"] button`, `.talk pre`)
		tab.resizeToPhone()
		tab.requireFits()
		tab.requireNoBrowserErrors()
	})
}
