package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/message"
)

func TestAMessageIsSavedOnceAndReadByItsSenderAlone(t *testing.T) {
	t.Parallel()
	s := serve(t)
	shop, bank := s.caller("shop", "submitter"), s.caller("bank", "submitter")
	const body = `{"client_msg_id":"order-1","to":"orders.paid","data":{"z":1.0,"a":"<你好>","n":1e30}}`
	saved := shop.post(post, body)
	require.Equal(t, 200, saved.status, saved.text)
	require.Equal(t, "saved", saved.data("ack"))
	require.Equal(t, "shop", saved.data("from"))
	require.EqualValues(t, 0, saved.data("status"))
	id := saved.data("server_msg_id").(string)
	require.Equal(t, "/api/v1/messages/"+id, saved.header.Get("Location"))
	require.Empty(t, saved.header.Get("Idempotency-Replayed"))

	again := shop.post(post, `{"data":{ "n":1e30, "a":"<你\u597d>", "z":1.0 },"to":"orders.paid","from":"shop","ack":"saved","client_msg_id":"order-1"}`)
	require.Equal(t, 200, again.status, again.text)
	require.Equal(t, id, again.data("server_msg_id"))
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
	other := shop.post(post, strings.Replace(body, "orders.paid", "orders.unpaid", 1))
	require.Equal(t, 422, other.status)
	require.Equal(t, "idempotency_key_reused", other.body["error"])
	require.NotEqual(t, id, bank.post(post, body).data("server_msg_id"), "another sender's is another message")

	got := shop.get(post + "/" + id)
	require.Equal(t, 200, got.status)
	require.Contains(t, got.text, `"data":{"z":1.0,"a":"<你好>","n":1e30}`, "as it was written")
	require.Equal(t, "sendonce.message.v1", got.data("type"))
	require.EqualValues(t, 5, got.data("remaining_sends"))
	require.NotEmpty(t, got.data("next_send_at"), "due at once")
	require.Equal(t, id, shop.get(post+"/by-key/order-1").data("server_msg_id"))
	require.Equal(t, 404, bank.get(post+"/"+id).status)
	require.Equal(t, 200, s.get(post+"/"+id).status, "an admin sees all")
	require.Equal(t, 404, s.get(post+"/by-key/order-1").status, "it was not the admin who handed it over")
	require.Equal(t, 2, s.count(`select count(*) from message_live`))
}

func TestWhatIsNoMessageIsNamedAndNotSaved(t *testing.T) {
	t.Parallel()
	s := serve(t)
	long := strings.Repeat("x", message.MaxData)
	for _, c := range []struct {
		body   string
		status int
		fields []string
	}{
		{`{}`, 400, []string{"client_msg_id", "data", "to"}},
		{`{"client_msg_id":"a b","to":"a","data":null,"type":"x y","from":"ä"}`, 400, []string{"client_msg_id", "data", "from", "type"}},
		{`{"client_msg_id":"k","to":"a","data":1,"ack":"never"}`, 400, []string{"ack"}},
		{`{"client_msg_id":"k","to":"a","data":1,"max_sends":0,"expected_receipts":101}`, 400, []string{"max_sends", "expected_receipts"}},
		{`{"client_msg_id":"k","to":"a.*","data":1}`, 400, []string{"to"}},
		{`{"client_msg_id":"k","to":"_INBOX.x","data":1}`, 400, []string{"to"}},
		{`{"client_msg_id":"k","to":"a","routing_key":"b","data":1}`, 400, []string{"to"}},
		{`{"client_msg_id":"k","to":"a","exchange_name":"b","data":1}`, 400, []string{"to"}},
		{`{"client_msg_id":"k","exchange_name":"a.b","routing_key":"c","data":1}`, 400, []string{"routing_key"}},
		{`{"client_msg_id":"k","to":"ftp://localhost/","data":1}`, 400, []string{"to"}},
		{`{"client_msg_id":"k","to":"user:bob","data":1,"confirm":true}`, 400, []string{"confirm"}},
		{`{"client_msg_id":"k","to":"https://a.test#x","data":1}`, 400, []string{"to"}},
		{`{"client_msg_id":"k","to":"a","data":1,"confirm":false,"expected_receipts":2}`, 400, []string{"expected_receipts"}},
		{`{"client_msg_id":"k","to":"a","data":"\u0000"}`, 400, []string{"data"}},
		{`{"client_msg_id":"k","to":"a","data":"\ud800"}`, 400, []string{"data"}},
		{`{"client_msg_id":"k","to":"a","data":"` + long + `"}`, 413, nil},
		{`{"client_msg_id":"k","to":"a","data":"` + long + long + `"}`, 413, nil},
	} {
		got := s.post(post, c.body)
		name := c.body[:min(len(c.body), 100)]
		require.Equal(t, c.status, got.status, "%s\n%s", name, got.text)
		require.ElementsMatch(t, c.fields, got.fields(), "%s\n%s", name, got.text)
	}
	require.Zero(t, s.count(`select count(*) from messages`))
	full := s.post(post, `{"client_msg_id":"k","to":"a","data": "`+long[2:]+`"}`)
	require.Equal(t, 200, full.status, full.text)
}

func TestAMessageKeepsToItsBlockedWordsUnlessItWasSavedBefore(t *testing.T) {
	t.Parallel()
	s := serve(t)
	body := func(key string) string {
		return fmt.Sprintf(`{"client_msg_id":%q,"to":"user:bob","data":{"lines":["hi",{"\u514d费贷款":1}]}}`, key)
	}
	require.Equal(t, 200, s.post(post, body("k")).status)
	require.Equal(t, 200, s.post(root+"blocked-words", `{"word":"免费贷款"}`).status)
	refused := s.post(post, body("l"))
	require.Equal(t, 400, refused.status)
	require.Equal(t, "content_blocked", refused.body["error"])
	require.Equal(t, 200, s.post(post, body("k")).status, "what was once accepted stays accepted")
}

func TestOnlyAnAdminActsForAnother(t *testing.T) {
	t.Parallel()
	s := serve(t)
	shop, points := s.caller("shop", "submitter"), s.caller("points", "receiver")
	const body = `{"from":"ann","client_msg_id":"k","to":"a","data":1}`
	require.Equal(t, 403, shop.post(post, body).status)
	saved := s.post(post, body)
	require.Equal(t, "ann", saved.data("from"))
	require.Equal(t, 200, s.get(post+"/by-key/k?from=ann").status)
	at := fmt.Sprintf("%s/%v", post, saved.data("server_msg_id"))
	require.Equal(t, 403, points.post(at+"/received", `{"consumer":"stock"}`).status)
	require.Equal(t, 403, shop.post(at+"/received", `{"consumer":"shop"}`).status)
	require.Equal(t, 403, points.post(post, body).status)
	require.Equal(t, 403, shop.post(at+"/redrive", "").status)
	require.Equal(t, 403, shop.get(post+"/stuck?kind=sent").status)
}

func TestAConfirmationIsAnsweredAlikeTheFirstTimeAgainAndLate(t *testing.T) {
	t.Parallel()
	s := serve(t)
	points, stock := s.receiver("points", "a"), s.receiver("stock", "a")
	saved := s.post(post, `{"client_msg_id":"k","to":"a","data":1,"expected_receipts":2}`)
	at := fmt.Sprintf("%s/%v", post, saved.data("server_msg_id"))
	useUp(s, message.Sent, saved.data("server_msg_id"))
	for _, who := range []*server{points, points} {
		got := who.post(at+"/received", `{"consumer":"points"}`)
		require.Equal(t, http.StatusNoContent, got.status)
		require.Empty(t, got.text)
		require.Equal(t, "sent", s.get(at).data("state"), "one of two")
	}
	require.Equal(t, 200, s.post(at+"/abandon", `{"reason":"enough"}`).status)
	require.Equal(t, 204, stock.post(at+"/received", `{}`).status)
	got := s.get(at)
	require.Equal(t, "received", got.data("state"))
	require.EqualValues(t, 2, got.data("status"))
	require.Equal(t, "stock", got.data("finished_by"))
	require.Len(t, got.data("receipts"), 2)
	require.Equal(t, 204, points.post(at+"/received", `{}`).status)
	require.Equal(t, 404, points.post(post+"/nonsense/received", `{}`).status)
}

func TestStuckMessagesArePagedRedrivenAndAbandoned(t *testing.T) {
	t.Parallel()
	s := serve(t)
	var ids []any
	for i := range 3 {
		ids = append(ids, s.post(post, fmt.Sprintf(`{"client_msg_id":"k%d","to":"a","data":1}`, i)).data("server_msg_id"))
	}
	useUp(s, message.Sent, ids...)
	seen := map[any]bool{}
	for path, last := post+"/stuck?kind=sent&limit=1", false; !last; {
		page := s.get(path)
		for _, item := range page.data("items").([]any) {
			require.Equal(t, true, item.(map[string]any)["stuck"])
			seen[item.(map[string]any)["server_msg_id"]] = true
		}
		last = page.data("next_after") == nil
		path = fmt.Sprintf("%s/stuck?kind=sent&limit=1&after=%v", post, page.data("next_after"))
	}
	require.Len(t, seen, 3)
	require.Empty(t, s.get(post+"/stuck?kind=sending").data("items"))

	counted := s.post(post+"/redrive", `{"kind":"sent","dry_run":true}`)
	require.EqualValues(t, 3, counted.data("matched"))
	require.EqualValues(t, 0, counted.data("changed"))
	require.EqualValues(t, 0, s.post(post+"/redrive", `{"kind":"sent","older_than_seconds":3600}`).data("matched"))
	require.EqualValues(t, 2, s.post(post+"/redrive", `{"kind":"sent","limit":2,"reason":"back"}`).data("changed"))
	abandoned := s.post(post+"/abandon", fmt.Sprintf(`{"ids":%s,"reason":"gone"}`, jsonList([]string{ids[0].(string), ids[1].(string), ids[2].(string)})))
	require.EqualValues(t, 1, abandoned.data("changed"), "the redriven ones are stuck no more")
	require.Equal(t, 1, s.count(`select count(*) from operator_actions where action = 'message.abandon' and reason = 'gone'`))
	require.Equal(t, 2, s.count(`select count(*) from operator_actions where action = 'message.redrive' and reason = 'back'`))
	require.Equal(t, 2, s.count(`select count(*) from message_live where epoch = 2 and remaining_sends = 5 and next_at <= now()`))
	for body, fields := range map[string][]string{
		`{}`: {"kind"}, `{"kind":"received"}`: {"kind"}, `{"ids":[]}`: {"ids"}, `{"ids":["x"]}`: {"ids[0]"},
		`{"kind":"sent","limit":501,"older_than_seconds":-1}`: {"limit", "older_than_seconds"},
	} {
		got := s.post(post+"/redrive", body)
		require.Equal(t, 400, got.status)
		require.ElementsMatch(t, fields, got.fields(), body)
	}
}
