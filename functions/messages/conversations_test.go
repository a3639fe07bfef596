package messages_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

const between = cluster.MessagesPath + "?between="

func TestConversationIsReadNewestFirst(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann, bob := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "submitter")
	want := []any{}
	for i := range 5 {
		from, to := ann, "bob"
		if i%2 == 1 {
			from, to = bob, "ann"
		}
		from.SendText(to, fmt.Sprint(i))
		want = append([]any{fmt.Sprint(i)}, want...)
	}
	ann.SendText("cid", "elsewhere")
	for _, c := range []struct {
		who     *cluster.Client
		members string
	}{{ann, "ann,bob"}, {ann, "bob,ann"}, {bob, "bob,ann"}, {s, "ann,bob"}} {
		require.Equal(t, want, c.who.Pages(between+c.members, "client_msg_id"), "%s to %s", c.members, c.who.User)
	}
	require.Len(t, ann.Get(between+"ann,bob&limit=2").Items(), 2)
	got := bob.Get(between + "ann,bob&limit=1")
	require.Contains(t, got.Text, `"from":"ann","to":"user:bob"`)
	require.Contains(t, got.Text, `"data":{"text":"4"}`, "messages have the same form in every response")
	require.Contains(t, bob.Get(between+"cid,bob").Text, `"items":[]`)
}

func TestReadCursorsArePerUserAndMoveForward(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann, bob := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "submitter")
	first, second, reply := ann.SendText("bob", "1"), ann.SendText("bob", "2"), bob.SendText("ann", "3")
	cursorOf := func(user string) any {
		return ann.Get(between + "ann,bob&limit=1").RequireOK().Data("read").(map[string]any)[user]
	}
	require.Equal(t, map[string]any{"unread": 2.0}, cursorOf("bob"))
	require.Equal(t, map[string]any{"unread": 1.0}, cursorOf("ann"))

	marked := bob.Post(cluster.MessagesPath+"/read", fmt.Sprintf(`{"between":"ann,bob","up_to":%q}`, second))
	require.Equal(t, 204, marked.Status, marked.Text)
	require.Empty(t, marked.Text)
	bobsCursor := cursorOf("bob")
	require.Subset(t, bobsCursor, map[string]any{"up_to": second, "unread": 0.0})
	require.NotEmpty(t, bobsCursor.(map[string]any)["read_at"])
	for _, id := range []string{first, second} {
		require.Equal(t, 204, bob.Post(cluster.MessagesPath+"/read", fmt.Sprintf(`{"between":"bob,ann","reader":"bob","up_to":%q}`, id)).Status)
		require.Equal(t, bobsCursor, cursorOf("bob"), "a repeat or an earlier message changes nothing")
	}
	require.Equal(t, map[string]any{"unread": 1.0}, cursorOf("ann"), "the cursor of the other user does not move")
	require.Equal(t, 204, s.Post(cluster.MessagesPath+"/read", fmt.Sprintf(`{"between":"ann,bob","reader":"ann","up_to":%q}`, reply)).Status, "an admin may move the cursor of any user")
	require.Subset(t, cursorOf("ann"), map[string]any{"unread": 0.0})
}

func TestConversationIsHiddenFromOthers(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann, bob, eve := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "submitter"), s.NewCaller("eve", "submitter")
	id := ann.SendText("bob", "k")
	mark := func(who *cluster.Client, reader string) int {
		return who.Post(cluster.MessagesPath+"/read", fmt.Sprintf(`{"between":"ann,bob"%s,"up_to":%q}`, reader, id)).Status
	}
	require.Equal(t, 403, eve.Get(between+"ann,bob").Status)
	require.Equal(t, 403, mark(eve, ""))
	require.Equal(t, 403, mark(eve, `,"reader":"bob"`))
	require.Equal(t, 403, mark(ann, `,"reader":"bob"`), "a member cannot move the cursor of the other")
	require.Equal(t, 200, s.NewCaller("ray", "receiver").Get(between+"ann,ray").Status)
	require.Equal(t, 204, mark(bob, ""))

	toAnnFromEve := eve.SendText("ann", "k")
	require.Equal(t, 404, bob.Post(cluster.MessagesPath+"/read", fmt.Sprintf(`{"between":"ann,bob","up_to":%q}`, toAnnFromEve)).Status)
	require.Equal(t, []string{"after"}, bob.Get(between+"ann,bob&after="+toAnnFromEve).Fields())
	require.Equal(t, 1, s.Count(`select count(*) from message_cursors`))
}

func TestBadConversationRequestNamesEachField(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
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
		got := s.Get(cluster.MessagesPath + query)
		require.Equal(t, 400, got.Status, "%s\n%s", query, got.Text)
		require.ElementsMatch(t, fields, got.Fields(), query)
	}
	for body, fields := range map[string][]string{
		`{}`:                                  {"between", "up_to"},
		`{"between":["ann","bob"],"up_to":7}`: {"between", "up_to"},
		`{"between":"ann,bob","up_to":"x","reader":"eve"}`:      {"up_to", "reader"},
		`{"between":"ann,bob","up_to":` + id + `}`:              {"reader"},
		`{"between":"bob,bob","up_to":` + id + `,"colour":"x"}`: {"between", "colour"},
	} {
		got := s.Post(cluster.MessagesPath+"/read", body)
		require.Equal(t, 400, got.Status, "%s\n%s", body, got.Text)
		require.ElementsMatch(t, fields, got.Fields(), body)
	}
}

const peers = cluster.MessagesPath + "/peers"

func TestPeersListsWhoWrote(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann, bob, cid := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "submitter"), s.NewCaller("cid", "receiver")
	bob.SendText("ann", "1")
	ann.SendText("cid", "2")
	first := bob.SendText("cid", "3")
	last := bob.SendText("cid", "4")
	s.SendText("cid", "5")
	require.Equal(t, 204, cid.Post(cluster.MessagesPath+"/read", fmt.Sprintf(`{"between":"bob,cid","up_to":%q}`, first)).Status)

	require.Equal(t, []any{"admin", "bob", "ann"}, cid.Pages(peers+"?", "peer"))
	require.Subset(t, cid.Get(peers).Items()[1], map[string]any{"last_server_msg_id": last, "unread": 1.0, "up_to": first})
	require.Contains(t, s.Get(peers+"?user=ann").Text, `"items":[{"peer":"bob"`, "an admin may list the peers of any user")
	require.Contains(t, bob.Get(peers+"?user=bob").Text, `"items":[]`)

	require.Equal(t, 403, bob.Get(peers+"?user=cid").Status, "no user may list the peers of another")
	require.Equal(t, []string{"after"}, bob.Get(peers+"?after="+last).Fields(), "the message is not to bob")
	require.ElementsMatch(t, []string{"user", "limit", "after", "before"}, cid.Get(peers+"?user=%20&limit=0&after=x&before=y").Fields())
}
