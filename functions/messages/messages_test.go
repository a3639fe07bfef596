package messages_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

func TestMessageIsSavedOnceAndHiddenFromOtherCallers(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, bank := s.NewCaller("shop", "submitter"), s.NewCaller("bank", "submitter")
	const body = `{"client_msg_id":"order-1","to":"orders.paid","data":{"z":1.0,"a":"<你好>","n":1e30}}`
	saved := shop.Post(cluster.MessagesPath, body).RequireOK()
	require.Equal(t, "saved", saved.Data("ack"))
	require.Equal(t, "shop", saved.Data("from"))
	require.EqualValues(t, 0, saved.Data("status"))
	id := saved.Data("server_msg_id").(string)
	require.Equal(t, "/api/v1/messages/"+id, saved.Header.Get("Location"))
	require.Empty(t, saved.Header.Get("Idempotency-Replayed"))

	again := shop.Post(cluster.MessagesPath, `{"data":{ "n":1e30, "a":"<你\u597d>", "z":1.0 },"to":"orders.paid","from":"shop","ack":"saved","client_msg_id":"order-1"}`).RequireOK()
	require.Equal(t, id, again.Data("server_msg_id"))
	require.Equal(t, "true", again.Header.Get("Idempotency-Replayed"))
	other := shop.Post(cluster.MessagesPath, strings.Replace(body, "orders.paid", "orders.unpaid", 1))
	require.Equal(t, 422, other.Status)
	require.Equal(t, "idempotency_key_reused", other.Body["error"])
	require.NotEqual(t, id, bank.Post(cluster.MessagesPath, body).Data("server_msg_id"), "the same key of another caller is another message")

	got := shop.Get(cluster.MessagesPath + "/" + id).RequireOK()
	require.Contains(t, got.Text, `"data":{"z":1.0,"a":"<你好>","n":1e30}`, "exactly as submitted")
	require.Equal(t, "sendonce.message.v1", got.Data("type"))
	require.EqualValues(t, 5, got.Data("remaining_sends"))
	require.NotEmpty(t, got.Data("next_send_at"), "the first send is scheduled")
	require.Equal(t, id, shop.Get(cluster.MessagesPath+"/by-key/order-1").Data("server_msg_id"))
	require.Equal(t, 404, bank.Get(cluster.MessagesPath+"/"+id).Status)
	require.Equal(t, 200, s.Get(cluster.MessagesPath+"/"+id).Status, "an admin sees all")
	require.Equal(t, 404, s.Get(cluster.MessagesPath+"/by-key/order-1").Status, "the admin did not submit it")
	require.Equal(t, 2, s.Count(`select count(*) from message_live`))
}

func TestInvalidMessageIsRefusedWithItsInvalidFields(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	long := strings.Repeat("x", message.MaxData) // with the quotes, the data is too long
	for _, c := range []struct {
		body   string
		status int
		fields []string
	}{
		{`{}`, 400, []string{"client_msg_id", "data", "to"}},
		{`{"client_msg_id":"a b","to":"a","data":null,"type":"x y","from":"ä"}`, 400, []string{"client_msg_id", "data", "from", "type"}},
		{`{"client_msg_id":"k","to":"a","data":1,"ack":"never"}`, 400, []string{"ack"}},
		{`{"client_msg_id":"k","to":"a","data":1,"max_sends":0,"expected_receipts":101}`, 400, []string{"max_sends", "expected_receipts"}},
		{`{"client_msg_id":"k","to":"a","data":1,"sent_at":"2026-11-25T23:00:00+24:00"}`, 400, []string{"sent_at"}},
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
		{`{"client_msg_id":"k","to":"a","data":[1e400]}`, 400, []string{"data"}},
		{`{"client_msg_id":"k","to":"a","data":"` + long + `"}`, 413, nil},
		{`{"client_msg_id":"k","to":"a","data":"` + long + long + `"}`, 413, nil}, // more than the limit of a request
	} {
		got := s.Post(cluster.MessagesPath, c.body)
		name := c.body[:min(len(c.body), 100)]
		require.Equal(t, c.status, got.Status, "%s\n%s", name, got.Text)
		require.ElementsMatch(t, c.fields, got.Fields(), "%s\n%s", name, got.Text)
	}
	require.Zero(t, s.Count(`select count(*) from messages`))
	longest := long[2:] // with the quotes, the data has MaxData bytes; the space before the data does not count
	s.Post(cluster.MessagesPath, `{"client_msg_id":"k","to":"a","data": "`+longest+`"}`).RequireOK()
}

func TestBlockedWordsRefuseNewMessagesOnly(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	body := func(key string) string {
		return fmt.Sprintf(`{"client_msg_id":%q,"to":"user:bob","data":{"lines":["hi",{"\u514d费贷款":1}]}}`, key)
	}
	s.Post(cluster.MessagesPath, body("k")).RequireOK()
	s.Post(cluster.AdminPath+"blocked-words", `{"word":"免费贷款"}`).RequireOK()
	refused := s.Post(cluster.MessagesPath, body("l"))
	require.Equal(t, 400, refused.Status)
	require.Equal(t, "content_blocked", refused.Body["error"])
	require.Equal(t, 200, s.Post(cluster.MessagesPath, body("k")).Status, "a repeat of a saved message is not refused")
}

func TestCallersActOnlyForThemselves(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop, points := s.NewCaller("shop", "submitter"), s.NewCaller("points", "receiver")
	const body = `{"from":"ann","client_msg_id":"k","to":"a","data":1}`
	require.Equal(t, 403, shop.Post(cluster.MessagesPath, body).Status, "shop is not ann")
	saved := s.Post(cluster.MessagesPath, body)
	require.Equal(t, "ann", saved.Data("from"), "an admin acts for anyone")
	s.Get(cluster.MessagesPath + "/by-key/k?from=ann").RequireOK()
	at := fmt.Sprintf("%s/%v", cluster.MessagesPath, saved.Data("server_msg_id"))
	require.Equal(t, 403, points.Post(at+"/received", `{"consumer":"stock"}`).Status, "points is not stock")
}

func TestStuckMessagesArePagedRedrivenAndAbandoned(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	var ids []any
	for i := range 3 {
		ids = append(ids, s.Post(cluster.MessagesPath, fmt.Sprintf(`{"client_msg_id":"k%d","to":"a","data":1}`, i)).Data("server_msg_id"))
	}
	s.ExhaustSends(message.Sent, ids...)
	require.ElementsMatch(t, ids, s.Pages(cluster.MessagesPath+"/stuck?kind=sent", "server_msg_id"))
	require.Equal(t, []any{true, true, true}, s.Get(cluster.MessagesPath+"/stuck?kind=sent").Values("stuck"))
	require.Empty(t, s.Get(cluster.MessagesPath+"/stuck?kind=sending").Data("items"))

	counted := s.Post(cluster.MessagesPath+"/redrive", `{"kind":"sent","dry_run":true}`)
	require.EqualValues(t, 3, counted.Data("matched"))
	require.EqualValues(t, 0, counted.Data("changed"))
	require.EqualValues(t, 0, s.Post(cluster.MessagesPath+"/redrive", `{"kind":"sent","older_than_seconds":3600}`).Data("matched"))
	require.EqualValues(t, 2, s.Post(cluster.MessagesPath+"/redrive", `{"kind":"sent","limit":2,"reason":"back"}`).Data("changed"))
	abandoned := s.Post(cluster.MessagesPath+"/abandon", fmt.Sprintf(`{"ids":[%q,%q,%q],"reason":"gone"}`, ids...))
	require.EqualValues(t, 1, abandoned.Data("changed"), "redriven messages are not stuck")
	for body, fields := range map[string][]string{
		`{}`: {"kind"}, `{"kind":"received"}`: {"kind"}, `{"ids":[]}`: {"ids"}, `{"ids":["x"]}`: {"ids[0]"},
		`{"kind":"sent","limit":501,"older_than_seconds":-1}`: {"limit", "older_than_seconds"},
	} {
		got := s.Post(cluster.MessagesPath+"/redrive", body)
		require.Equal(t, 400, got.Status)
		require.ElementsMatch(t, fields, got.Fields(), body)
	}
}

// The URL that a message is posted to may be a secret.
func TestViewersSeeOnlyTheHostThatAMessageIsPostedTo(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann, viewer := s.NewCaller("ann", "submitter"), s.NewCaller("viewer", "viewer")
	created := ann.Post(cluster.MessagesPath, `{"client_msg_id":"1","to":"https://shop.example/SECRETMARK","data":1}`).RequireOK()
	s.Exec(`update message_live set remaining_sends = 0, next_at = null`)
	own := "/" + created.Data("server_msg_id").(string)
	for _, path := range []string{own, "/stuck?kind=sending"} {
		require.Contains(t, s.Get(cluster.MessagesPath+path).Text, "SECRETMARK", path)
		require.Contains(t, viewer.Get(cluster.MessagesPath+path).Text, `"to":"https://shop.example/****"`, path)
	}
	require.Contains(t, ann.Get(cluster.MessagesPath+own).Text, "SECRETMARK")
}

func TestViewersReadMessagesAndEachRevealIsAudited(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann, bob, cid, viewer := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "submitter"), s.NewCaller("cid", "submitter"), s.NewCaller("viewer", "viewer")
	limited := s.NewCaller("limited", "viewer") // to one queue; messages have no queue
	s.Exec(`update callers set queues = '{promo}' where name = 'limited'`)
	id := ann.SendText("bob", "hello")
	for path, status := range map[string]int{"/" + id: 404, "?between=ann,bob": 403, "/peers?user=bob": 403, "/stuck?kind=sent": 403} {
		require.Equal(t, 200, viewer.Get(cluster.MessagesPath+path).Status, path)
		require.Equal(t, status, limited.Get(cluster.MessagesPath+path).Status, path)
	}
	require.Contains(t, viewer.Get(cluster.MessagesPath+"/peers?user=bob").Text, `"peer":"ann"`)
	require.Equal(t, 403, viewer.Post(cluster.MessagesPath+"/"+id+"/abandon", `{"reason":"x"}`).Status)
	require.Equal(t, 403, viewer.Post(cluster.MessagesPath+"/read", `{"between":"ann,bob","up_to":"`+id+`"}`).Status)

	reveal := func(who *cluster.Client) []any {
		t.Helper()
		return who.Post(cluster.MessagesPath+"/reveal", `{"ids":["`+id+`"],"reason":"asked"}`).Values("data")
	}
	for i, who := range []*cluster.Client{ann, bob, viewer, s} {
		require.Equal(t, []any{map[string]any{"text": "hello"}}, reveal(who))
		require.Equal(t, i+1, s.Count(`select count(*) from operator_actions where action = 'message.reveal' and subject = $1 and reason = 'asked'`, id))
		reveal(who) // not recorded again within the hour: see the last count
	}
	require.Empty(t, reveal(cid), "cid is not in this conversation")
	require.Empty(t, reveal(limited))
	require.Equal(t, 4, s.Count(`select count(*) from operator_actions where action = 'message.reveal'`), "one for each caller that was shown the data")
}
