package stream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

func TestStreamResumesAfterLastEventID(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	o.StartAll()
	s := o.Admin
	first := cluster.OpenStream(s, cluster.StreamsPath+"bob")
	first.Close()
	before := o.Save("user:bob")
	o.Save("user:carl")
	second := cluster.OpenStream(s, cluster.StreamsPath+"bob", "Last-Event-ID", first.Last)
	require.Equal(t, before, second.NextMessage(), "a stream without events also has a position to resume from")
	second.Close()
	missed := []string{o.Save("user:bob")}
	o.WaitMessage(missed[0], "sent") // two messages that are due at the same time may be sent in any order
	missed = append(missed, o.Save("user:bob"))
	o.WaitMessage(missed[1], "sent")
	third := cluster.OpenStream(s, cluster.StreamsPath+"bob?after=0", "Last-Event-ID", second.Last)
	require.Equal(t, missed, []string{third.NextMessage(), third.NextMessage()}, "Last-Event-ID overrides after, since an EventSource reconnects to the same URL")
	last := o.Save("user:bob")
	require.Equal(t, last, third.NextMessage())
	all := cluster.OpenStream(s, cluster.StreamsPath+"bob?after=0")
	require.Equal(t, append([]string{before}, append(missed, last)...), []string{all.NextMessage(), all.NextMessage(), all.NextMessage(), all.NextMessage()})
}

func TestStreamNeedsRoleAndOwnName(t *testing.T) {
	t.Parallel()
	s, _ := cluster.OwnServer.ServeWithNATS(t)
	ann, bob := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "receiver")
	cluster.OpenStream(bob, cluster.StreamsPath+"bob")
	cluster.OpenStream(s, cluster.StreamsPath+"bob")
	for who, refused := range map[*cluster.Client]string{ann: cluster.StreamsPath + "bob", bob: cluster.StreamsPath + "ann", s.NewCaller("sends", "sender"): cluster.StreamsPath + "sends"} {
		got := who.Get(refused)
		require.Equal(t, 403, got.Status)
		require.Equal(t, "forbidden", got.Body["error"])
	}
	require.Equal(t, 401, (&cluster.Client{T: t, URL: s.URL, User: "bob", Password: "x"}).Get(cluster.StreamsPath+"bob").Status)
	require.Equal(t, []string{"user"}, s.Get(cluster.StreamsPath+"a%20b").Fields())
	require.Equal(t, []string{"after"}, s.Get(cluster.StreamsPath+"bob?after=x").Fields())
	require.Equal(t, []string{"Last-Event-ID"}, s.Do("GET", cluster.StreamsPath+"bob", "", "Last-Event-ID", "18446744073709551615").Fields())
}

func TestStreamEndsByLimitOrWithProcess(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	o.StartAll("SENDONCE_STREAM_MAX=5s")
	began := time.Now()
	cluster.OpenStream(o.Admin, cluster.StreamsPath+"bob").End()
	require.InDelta(t, 5, time.Since(began).Seconds(), 2)
	s := o.At(o.Start("stream", "SENDONCE_STREAM_MAX=55m"))
	p := o.Process("stream")

	streams, sockets := make([]*cluster.StreamReader, 20), make([]*cluster.SocketClient, 20)
	for i := range streams {
		streams[i] = cluster.OpenStream(s, fmt.Sprintf("%suser-%d", cluster.StreamsPath, i))
		sockets[i] = cluster.OpenSocket(s, fmt.Sprint("user-", i), nil)
	}
	began = time.Now()
	require.NoError(t, p.Signal(syscall.SIGTERM))
	for i, e := range streams {
		e.End()
		_, err := sockets[i].Socket.Next(context.WithoutCancel(t.Context()))
		require.Equal(t, websocket.StatusGoingAway, websocket.CloseStatus(err), "%v", err)
		require.ErrorContains(t, err, "this instance ends")
	}
	require.Less(t, time.Since(began), 3*time.Second, "long before SENDONCE_STREAM_MAX")
	cluster.WaitExit(t, p)
	require.Zero(t, p.ExitCode())
}

func TestStreamsQueryNothingPerMessage(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	s := o.At(o.Start("stream"))
	admin := o.At(o.Start("admin"))
	caller := admin.NewCaller("u-0", "receiver")
	caller.URL = s.URL
	b := openBus(t, o.NATS.URL())
	const users = 200
	readers, messages := make([]*cluster.StreamReader, users), make([]bus.Message, users)
	for i := range users {
		who := s
		if i == 0 {
			who = caller
		}
		readers[i] = cluster.OpenStream(who, fmt.Sprint(cluster.StreamsPath+"u-", i))
	}
	sendsWithoutStatement := func(round int) bool {
		before := o.Admin.LastStatementAt()
		for i := range messages {
			messages[i] = newMessage(fmt.Sprint("u-", i), fmt.Sprintf("u-%d-%d", i, round))
		}
		for _, err := range b.Publish(t.Context(), messages) {
			require.NoError(t, err)
		}
		for i, e := range readers {
			require.Equal(t, messages[i].Event.ID(), e.NextMessage())
		}
		return o.Admin.LastStatementAt().Equal(before)
	}
	for round := 0; !sendsWithoutStatement(round); round++ { // another round if a caller was looked up, which happens every minute
		require.Less(t, round, 5)
	}
}

// A client that reconnects after its inbox has overflowed gets an event, which says that messages may be missing, and how
// to find them.
func TestStreamReportsAGap(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.Env = append(o.Env, "SENDONCE_INBOX_MESSAGES=100") // also read by the process trigger, which creates the stream USERS
	o.StartAll()
	s := o.Admin
	first := o.Save("user:bob")
	o.WaitMessage(first, "sent")
	inbox := cluster.OpenStream(s, cluster.StreamsPath+"bob?after=0")
	require.Equal(t, first, inbox.NextMessage())
	last := inbox.Last
	inbox.Close()
	for range 150 {
		o.Save("user:bob")
	}
	ann := o.Save("user:ann")
	cluster.WaitAllSent(o, func() {})
	require.Equal(t, 101, o.MessagesIn("USERS"), "the last 100 to bob, and 1 to ann")
	again := cluster.OpenStream(s, cluster.StreamsPath+"bob", "Last-Event-ID", last)
	gap := again.Event()
	require.Equal(t, "gap", gap.Kind)
	data := cluster.DecodeStrictly[api.StreamGapData](t, []byte(gap.Data))
	require.Equal(t, last, fmt.Sprint(data.After))
	require.Equal(t, gap.ID, fmt.Sprint(data.Next-1))
	require.Contains(t, data.Message, "GET /api/v1/messages?between=")
	for range 100 {
		again.NextMessage()
	}
	require.Equal(t, ann, cluster.OpenStream(s, cluster.StreamsPath+"ann?after=0").NextMessage(), "no message to another user is missing")
	fresh := cluster.OpenStream(s, cluster.StreamsPath+"bob?after=0").Event()
	require.Equal(t, []string{"gap", gap.ID}, []string{fresh.Kind, fresh.ID}, "a client that reads from the beginning gets the gap too")
}

// getWithoutCredentials sends a GET without credentials, and returns the status.
func getWithoutCredentials(t *testing.T, address string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return res.StatusCode
}

// An expired token is refused. To choose when a token expires, the test encrypts tokens with the key of the server.
func TestStreamTokenExpires(t *testing.T) {
	t.Parallel()
	s, _ := cluster.OwnServer.ServeWithNATS(t)
	bob := s.NewCaller("bob", "receiver")
	before := time.Now()
	token := bob.Post(cluster.StreamsPath+"bob/token", "").Data("token").(string)
	keys, err := store.ParseKeys(sandbox.EncryptionKey)
	require.NoError(t, err)
	const purpose = "token in an address " + cluster.StreamsPath + "bob" // a token can only be decrypted with its purpose
	text, err := keys.Decrypt(purpose, strings.NewReplacer("-", "+", "_", "/").Replace(token))
	require.NoError(t, err)
	var session auth.Session
	require.NoError(t, json.Unmarshal([]byte(text), &session))
	require.WithinDuration(t, before.Add(time.Minute), session.Expires, 10*time.Second)

	for expires, want := range map[time.Time]int{time.Now().Add(time.Minute): 200, time.Now(): 401} {
		session.Expires = expires
		text, err := json.Marshal(session)
		require.NoError(t, err)
		token, err := keys.Encrypt(purpose, string(text))
		require.NoError(t, err)
		got := getWithoutCredentials(t, s.URL+cluster.StreamsPath+"bob?token="+url.QueryEscape(token))
		require.Equal(t, want, got, "a token that expires %v", time.Until(expires))
	}
}

func TestStreamTokenReplacesCredentials(t *testing.T) {
	t.Parallel()
	s, _ := cluster.OwnServer.ServeWithNATS(t)
	bob, ann := s.NewCaller("bob", "receiver"), s.NewCaller("ann", "receiver")
	token := bob.Post(cluster.StreamsPath+"bob/token", "").Data("token").(string)
	get := func(path string) int { return getWithoutCredentials(t, s.URL+path) }
	require.Equal(t, 200, get(cluster.StreamsPath+"bob?token="+token))
	require.Equal(t, 200, get(cluster.StreamsPath+"bob?after=0&token="+token), "a token may be used more than once")
	for _, path := range []string{
		cluster.StreamsPath + "ann?token=" + token, cluster.StreamsPath + "bob?token=" + token[:len(token)-2], cluster.StreamsPath + "bob?token=x", cluster.StreamsPath + "bob",
		"/api/v1/messages/peers?token=" + token, "/api/v1/sms/by-key/x?token=" + token,
	} {
		require.Equal(t, 401, get(path), path)
	}
	require.Equal(t, 403, ann.Post(cluster.StreamsPath+"bob/token", "").Status)
	require.Equal(t, 401, (&cluster.Client{T: t, URL: s.URL, User: "bob", Password: "x"}).Get(cluster.StreamsPath+"bob?token="+token).Status, "wrong credentials are refused even with a valid token")
	s.Post(s.CallerPath("bob")+"/revoke", "{}")
	require.Equal(t, 401, get(cluster.StreamsPath+"bob?token="+token), "the caller was revoked")
}
