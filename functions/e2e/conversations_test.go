package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

const between = post + "?between="

// sendText sends a message from one user to another and gives its id.
func sendText(s *server, to, key string) string {
	s.t.Helper()
	saved := s.post(post, fmt.Sprintf(`{"client_msg_id":%q,"to":"user:%s","data":{"text":%q}}`, key, to, key))
	require.Equal(s.t, 200, saved.status, saved.text)
	return saved.data("server_msg_id").(string)
}

// keysOf gives the client_msg_ids of a page, and what the next one comes after.
func keysOf(r reply) (keys []any, next string) {
	require.Equal(r.t, 200, r.status, r.text)
	for _, item := range r.data("items").([]any) {
		keys = append(keys, item.(map[string]any)["client_msg_id"])
	}
	next, _ = r.data("next_after").(string)
	return keys, next
}

// cursorOf is how far a user has read.
func cursorOf(r reply, of string) map[string]any {
	require.Equal(r.t, 200, r.status, r.text)
	return r.data("read").(map[string]any)[of].(map[string]any)
}

func TestTwoUsersReadWhatTheySaidNewestFirst(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ann, bob := s.caller("ann", "submitter"), s.caller("bob", "submitter")
	want := []any{}
	for i := range 5 {
		from, to := ann, "bob"
		if i%2 == 1 {
			from, to = bob, "ann"
		}
		sendText(from, to, fmt.Sprint(i))
		want = append([]any{fmt.Sprint(i)}, want...)
	}
	sendText(ann, "cid", "elsewhere")
	for path, who := range map[string]*server{"ann,bob": ann, "bob,ann": ann, "bob,ann&": bob, "ann,bob&": s} {
		seen := []any{}
		for after := ""; ; {
			keys, next := keysOf(who.get(between + path + "&limit=2" + after))
			seen = append(seen, keys...)
			if next == "" {
				break
			}
			after = "&after=" + next
		}
		require.Equal(t, want, seen, path)
	}
	got := bob.get(between + "ann,bob&limit=1")
	require.Contains(t, got.text, `"from":"ann","to":"user:bob"`)
	require.Contains(t, got.text, `"data":{"text":"4"}`, "in the form of every message")
	require.Contains(t, bob.get(between+"cid,bob").text, `"items":[]`)
}

func TestEachOfTwoUsersReadsForItselfAndForwardOnly(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ann, bob := s.caller("ann", "submitter"), s.caller("bob", "submitter")
	first, second, answer := sendText(ann, "bob", "1"), sendText(ann, "bob", "2"), sendText(bob, "ann", "3")
	page := func() reply { return ann.get(between + "ann,bob&limit=1") }
	require.Equal(t, map[string]any{"unread": 2.0}, cursorOf(page(), "bob"))
	require.Equal(t, map[string]any{"unread": 1.0}, cursorOf(page(), "ann"))

	marked := bob.post(post+"/read", fmt.Sprintf(`{"between":"ann,bob","up_to":%q}`, second))
	require.Equal(t, 204, marked.status, marked.text)
	require.Empty(t, marked.text)
	then := cursorOf(page(), "bob")
	require.Equal(t, second, then["up_to"])
	require.EqualValues(t, 0, then["unread"])
	require.NotEmpty(t, then["read_at"])
	for _, id := range []string{first, second} {
		require.Equal(t, 204, bob.post(post+"/read", fmt.Sprintf(`{"between":"bob,ann","reader":"bob","up_to":%q}`, id)).status)
		require.Equal(t, then, cursorOf(page(), "bob"), "again and back change nothing")
	}
	require.Equal(t, map[string]any{"unread": 1.0}, cursorOf(page(), "ann"), "the other's reading is the other's")
	require.Equal(t, 204, s.post(post+"/read", fmt.Sprintf(`{"between":"ann,bob","reader":"ann","up_to":%q}`, answer)).status, "an admin reads for anybody")
	require.EqualValues(t, 0, cursorOf(page(), "ann")["unread"])
}

func TestAConversationIsClosedToOthers(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ann, bob, eve := s.caller("ann", "submitter"), s.caller("bob", "submitter"), s.caller("eve", "submitter")
	id := sendText(ann, "bob", "k")
	mark := func(who *server, reader string) int {
		return who.post(post+"/read", fmt.Sprintf(`{"between":"ann,bob"%s,"up_to":%q}`, reader, id)).status
	}
	require.Equal(t, 403, eve.get(between+"ann,bob").status)
	require.Equal(t, 403, mark(eve, ""))
	require.Equal(t, 403, mark(eve, `,"reader":"bob"`))
	require.Equal(t, 403, mark(ann, `,"reader":"bob"`), "nobody reads for the other")
	require.Equal(t, 200, s.caller("ray", "receiver").get(between+"ann,ray").status)
	require.Equal(t, 403, s.caller("app", "sender").get(between+"ann,app").status, "a role is needed as well")
	require.Equal(t, 204, mark(bob, ""))

	others := sendText(eve, "ann", "k")
	require.Equal(t, 404, bob.post(post+"/read", fmt.Sprintf(`{"between":"ann,bob","up_to":%q}`, others)).status)
	require.Equal(t, []string{"after"}, bob.get(between+"ann,bob&after="+others).fields())
	require.Equal(t, 1, s.count(`select count(*) from message_cursors`))
}

func TestWhatIsNoConversationIsNamedFieldByField(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const id = `"12271fe2-f66c-5f8b-902a-ea98ca8bf637"`
	for query, fields := range map[string][]string{
		"":                              {"between"},
		"?between=ann":                  {"between"},
		"?between=ann,":                 {"between"},
		"?between=ann,ann":              {"between"},
		"?between=ann,bob,cid":          {"between"},
		"?between=ann,%20bob":           {"between"},
		"?between=ann,b%00b":            {"between"},
		"?between=ä,bob&limit=0&after=": {"between", "limit"},
		"?between=ann,bob&limit=201&after=x&before=y": {"limit", "after", "before"},
		"?between=ann,bob&after=" + id[1:37]:          {"after"},
	} {
		got := s.get(post + query)
		require.Equal(t, 400, got.status, "%s\n%s", query, got.text)
		require.ElementsMatch(t, fields, got.fields(), query)
	}
	for body, fields := range map[string][]string{
		`{}`:                                  {"between", "up_to"},
		`{"between":["ann","bob"],"up_to":7}`: {"between", "up_to"},
		`{"between":"ann,bob","up_to":"x","reader":"eve"}`:      {"up_to", "reader"},
		`{"between":"ann,bob","up_to":` + id + `}`:              {"reader"},
		`{"between":"bob,bob","up_to":` + id + `,"colour":"x"}`: {"between", "colour"},
	} {
		got := s.post(post+"/read", body)
		require.Equal(t, 400, got.status, "%s\n%s", body, got.text)
		require.ElementsMatch(t, fields, got.fields(), body)
	}
}

const peers = post + "/peers"

func TestAUserLearnsWhoWroteToIt(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ann, bob, cid := s.caller("ann", "submitter"), s.caller("bob", "submitter"), s.caller("cid", "receiver")
	sendText(bob, "ann", "1")
	sendText(ann, "cid", "2")
	first := sendText(bob, "cid", "3")
	last := sendText(bob, "cid", "4")
	sendText(s, "cid", "5")
	require.Equal(t, 204, cid.post(post+"/read", fmt.Sprintf(`{"between":"bob,cid","up_to":%q}`, first)).status)

	var seen []any
	for after := ""; ; {
		page := cid.get(peers + "?limit=1" + after)
		require.Equal(t, 200, page.status, page.text)
		seen = append(seen, page.data("items").([]any)...)
		next, more := page.data("next_after").(string)
		if !more {
			break
		}
		after = "&after=" + next
	}
	require.Len(t, seen, 3)
	names := make([]any, len(seen))
	for i, peer := range seen {
		names[i] = peer.(map[string]any)["peer"]
	}
	require.Equal(t, []any{"admin", "bob", "ann"}, names)
	require.Subset(t, seen[1], map[string]any{"last_server_msg_id": last, "unread": 1.0, "up_to": first})
	require.Contains(t, s.get(peers+"?user=ann").text, `"items":[{"peer":"bob"`, "an admin asks for anybody")
	require.Contains(t, bob.get(peers+"?user=bob").text, `"items":[]`)

	require.Equal(t, 403, bob.get(peers+"?user=cid").status, "nobody learns who writes to another")
	require.Equal(t, 403, s.caller("app", "sender").get(peers).status)
	require.Equal(t, []string{"after"}, bob.get(peers+"?after="+last).fields(), "it is no message to bob")
	require.ElementsMatch(t, []string{"user", "limit", "after", "before"}, cid.get(peers+"?user=%20&limit=0&after=x&before=y").fields())
}

func (s story) tellOfConversations() {
	s.t.Helper()
	ann := s.as(s.caller("ann", "submitter"))
	said := sendText(ann.server, "cid", "hello")
	sendText(ann.server, "cid", "still-there")
	require.NotEmpty(s.t, ann.get(200, between+"ann,cid&limit=1").data("next_after"))
	s.post(204, post+"/read", fmt.Sprintf(`{"between":"ann,cid","reader":"cid","up_to":%q}`, said))
	ann.get(200, between+"cid,ann&after="+said)
	ann.get(403, between+"bob,cid")
	ann.post(403, post+"/read", fmt.Sprintf(`{"between":"ann,cid","reader":"cid","up_to":%q}`, said))
	s.post(404, post+"/read", fmt.Sprintf(`{"between":"ann,bob","reader":"ann","up_to":%q}`, said))
	s.get(400, between+"ann,ann")
	sendText(ann.server, "bob", "to-bob")
	s.get(200, peers+"?user=bob&limit=1")
	ann.get(403, peers+"?user=bob")
	s.get(400, peers+"?after=x")
	s.post(400, post+"/read", fmt.Sprintf(`{"between":"ann,cid","reader":"bob","up_to":%q}`, said))
}
