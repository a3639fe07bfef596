package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// streamEvent is an event of a stream.
type streamEvent struct{ id, kind, data string }

// streamReader reads a stream.
type streamReader struct {
	t     *testing.T
	req   *http.Request
	res   *http.Response
	body  *bufio.Reader
	leave context.CancelFunc
	text  strings.Builder // all that was read
	last  string          // id to resume after
}

// listen returns once the stream has begun.
func listen(s *cluster.Client, path string, header ...string) *streamReader {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.T.Context()), 2*cluster.WaitLimit)
	s.T.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", s.URL+path, nil)
	require.NoError(s.T, err)
	req.SetBasicAuth(s.User, s.Password)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(s.T, err)
	s.T.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(s.T, 200, res.StatusCode)
	e := &streamReader{t: s.T, req: req, res: res, body: bufio.NewReader(res.Body), leave: cancel}
	require.Empty(s.T, e.block().data, "a stream begins with its position")
	require.NotEmpty(s.T, e.last)
	return e
}

// block reads up to a blank line; ok is false at the end of the stream.
func (e *streamReader) block() (b streamEvent) {
	e.t.Helper()
	for {
		line, err := e.body.ReadString('\n')
		require.NoError(e.t, err, "after %s", e.text.String())
		e.text.WriteString(line)
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "id":
			b.id, e.last = value, value
		case "event":
			b.kind = value
		case "data":
			b.data += value
		case "":
			if line == "\n" {
				return b
			}
		}
	}
}

// event waits for the next event.
func (e *streamReader) event() streamEvent {
	e.t.Helper()
	for {
		if b := e.block(); b.data != "" {
			return b
		}
	}
}

// nextMessage waits for the next message and returns its id.
func (e *streamReader) nextMessage() string {
	e.t.Helper()
	h := e.event()
	require.Equal(e.t, "message", h.kind)
	var event cloudevents.Event
	require.NoError(e.t, json.Unmarshal([]byte(h.data), &event), h.data)
	return event.ID()
}

// end reads to the end of the stream, and demands that it is an orderly one.
func (e *streamReader) end() {
	e.t.Helper()
	var rest strings.Builder
	_, err := e.body.WriteTo(&rest)
	require.NoError(e.t, err)
	require.True(e.t, strings.HasSuffix(rest.String(), "retry: 250\n\n"), rest.String())
}

func TestStreamResumesWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	o.StartAll()
	s := o.Admin
	first := listen(s, cluster.StreamsPath+"bob")
	first.leave()
	early := o.Save("user:bob")
	o.Save("user:carl")
	second := listen(s, cluster.StreamsPath+"bob", "Last-Event-ID", first.last)
	require.Equal(t, early, second.nextMessage(), "also for one who had no event before")
	second.leave()
	missed := []string{o.Save("user:bob")}
	o.WaitMessage(missed[0], "sent") // two that are due at once may come in any order
	missed = append(missed, o.Save("user:bob"))
	o.WaitMessage(missed[1], "sent")
	third := listen(s, cluster.StreamsPath+"bob?after=0", "Last-Event-ID", second.last)
	require.Equal(t, missed, []string{third.nextMessage(), third.nextMessage()}, "the header wins, as an EventSource keeps its URL")
	last := o.Save("user:bob")
	require.Equal(t, last, third.nextMessage())
	all := listen(s, cluster.StreamsPath+"bob?after=0")
	require.Equal(t, append([]string{early}, append(missed, last)...), []string{all.nextMessage(), all.nextMessage(), all.nextMessage(), all.nextMessage()})
}

func TestStreamIsItsCallersOnly(t *testing.T) {
	t.Parallel()
	s, _ := cluster.OwnServer.ServeWithNATS(t)
	ann, bob := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "receiver")
	listen(bob, cluster.StreamsPath+"bob")
	listen(s, cluster.StreamsPath+"bob")
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
	listen(o.Admin, cluster.StreamsPath+"bob").end()
	require.InDelta(t, 5, time.Since(began).Seconds(), 2)
	s := o.At(o.Start("stream", "SENDONCE_STREAM_MAX=55m"))
	p := o.Process("stream")

	streams, sockets := make([]*streamReader, 20), make([]*socketClient, 20)
	for i := range streams {
		streams[i] = listen(s, fmt.Sprintf("%suser-%d", cluster.StreamsPath, i))
		sockets[i] = openSocket(s, fmt.Sprint("user-", i), nil)
	}
	began = time.Now()
	require.NoError(t, p.Signal(15))
	for i, e := range streams {
		e.end()
		_, err := sockets[i].socket.Next(context.WithoutCancel(t.Context()))
		require.Equal(t, websocket.StatusGoingAway, websocket.CloseStatus(err), "%v", err)
		require.ErrorContains(t, err, "this instance ends")
	}
	require.Less(t, time.Since(began), 3*time.Second, "long before their time")
	cluster.WaitExit(t, p)
	require.Zero(t, p.ExitCode())
}

func TestStreamContinuesWhenNATSIsBack(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	o.StartAll()
	s := o.Admin
	bob := listen(s, cluster.StreamsPath+"bob")
	before := o.Save("user:bob")
	require.Equal(t, before, bob.nextMessage())
	require.NoError(t, o.NATS.Stop())
	var refused cluster.Reply
	cluster.Eventually(t, func() bool {
		refused = s.Do("GET", cluster.StreamsPath+"bob", "")
		return refused.Status == 503
	})
	require.Equal(t, "server_busy", refused.Body["error"])
	require.NotEmpty(t, refused.Header.Get("Retry-After"))
	meanwhile := o.Save("user:bob")
	o.StartNATS()
	require.Equal(t, meanwhile, bob.nextMessage(), "on the same connection")
	after := o.Save("user:bob")
	require.Equal(t, after, bob.nextMessage())
}

func TestHundredsOfStreamsSendNoStatements(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	s := o.At(o.Start("stream"))
	admin := o.At(o.Start("admin"))
	caller := admin.NewCaller("u-0", "receiver")
	caller.URL = s.URL
	broker, err := bus.Open(bus.Config{URL: o.NATS.URL(), Replicas: 1}, sandbox.Log(t))
	require.NoError(t, err)
	t.Cleanup(broker.Close)
	require.NoError(t, broker.Ensure(t.Context()))
	const users = 200
	readers, messages := make([]*streamReader, users), make([]bus.Message, users)
	for i := range users {
		who := s
		if i == 0 {
			who = caller
		}
		name := fmt.Sprintf("u-%d", i)
		readers[i] = listen(who, cluster.StreamsPath+name)
		event := cloudevents.NewEvent()
		event.SetID(name)
		event.SetSource("/test")
		event.SetType("text")
		messages[i] = bus.Message{Subject: bus.UserSubject(name), Event: event}
	}
	before := o.Admin.LastStatement()
	for _, err := range broker.Publish(t.Context(), messages) {
		require.NoError(t, err)
	}
	for i, e := range readers {
		require.Equal(t, fmt.Sprintf("u-%d", i), e.nextMessage())
	}
	require.Equal(t, before, o.Admin.LastStatement())
}
