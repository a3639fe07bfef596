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
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// streamEvent is an event of a stream.
type streamEvent struct{ id, kind, data string }

// streamReader is somebody who listens to a stream.
type streamReader struct {
	t     *testing.T
	req   *http.Request
	res   *http.Response
	body  *bufio.Reader
	leave context.CancelFunc
	text  strings.Builder // all that was said
	last  string          // where to go on
}

// listen returns once the stream has begun.
func listen(s *server, path string, header ...string) *streamReader {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 2*waitLimit)
	s.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", s.url+path, nil)
	require.NoError(s.t, err)
	req.SetBasicAuth(s.user, s.password)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(s.t, 200, res.StatusCode)
	e := &streamReader{t: s.t, req: req, res: res, body: bufio.NewReader(res.Body), leave: cancel}
	require.Empty(s.t, e.block().data, "a stream begins with its place")
	require.NotEmpty(s.t, e.last)
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

// told waits for the next message and gives its id.
func (e *streamReader) told() string {
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

// startAll is all functions as one process with a trigger.
func (o *postOffice) startAll(env ...string) (*server, *sandbox.Process) {
	o.t.Helper()
	p := startProcess(o.t, o.bin, append(append([]string{}, o.env...), env...))
	at := address(o.t, p)
	o.trigger(at)
	if o.nats != nil {
		js := o.jetStream()
		require.Eventually(o.t, func() bool { _, err := js.Stream(o.t.Context(), "USERS"); return err == nil }, waitLimit, 5*time.Millisecond)
	}
	o.client.BaseURL = at
	return o.at(at), p
}

func TestTwoCallersChat(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	s, _ := o.startAll()
	ann, bob := s.caller("ann", "submitter"), s.caller("bob", "submitter")
	annHears := listen(ann, streams+"ann")
	const rounds = 5
	zero := int64(0)
	chat := api.NewClient(s.url, bob.user, bob.password)
	done := make(chan error, 1)
	go func() { // bob answers whatever comes
		heard := 0
		for e, err := range chat.Stream(context.WithoutCancel(t.Context()), "bob", api.StreamRequest{After: &zero}) {
			var event cloudevents.Event
			if err == nil {
				err = json.Unmarshal(e.Data, &event)
			}
			if err == nil {
				_, err = chat.SubmitMessage(context.WithoutCancel(t.Context()), api.MessageRequest{
					ClientMsgID: "re-" + event.ID(), To: "user:ann", Type: "text", Data: event.Data(),
				})
			}
			if heard++; err != nil || heard == rounds {
				done <- err
				return
			}
		}
	}()
	for n := range rounds {
		said := ann.post(post, fmt.Sprintf(`{"client_msg_id":"c-%d","to":"user:bob","type":"text","data":"第%d\n句"}`, n, n))
		require.Equal(t, 200, said.status, said.text)
		var event cloudevents.Event
		require.NoError(t, json.Unmarshal([]byte(annHears.event().data), &event))
		require.Equal(t, "text", event.Type())
		require.Equal(t, "/sendonce/messages/bob", event.Source())
		require.JSONEq(t, fmt.Sprintf(`"第%d\n句"`, n), string(event.Data()), "bob's answer is what ann said")
	}
	require.NoError(t, <-done)
}

func TestAStreamThatWasCutIsTakenUpWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	s, _ := o.startAll()
	first := listen(s, streams+"bob")
	first.leave()
	early := o.save("user:bob")
	o.save("user:carl")
	second := listen(s, streams+"bob", "Last-Event-ID", first.last)
	require.Equal(t, early, second.told(), "also for one who had no event before")
	second.leave()
	missed := []string{o.save("user:bob")}
	o.until(missed[0], "sent") // two that are due at once may come in any order
	missed = append(missed, o.save("user:bob"))
	o.until(missed[1], "sent")
	third := listen(s, streams+"bob?after=0", "Last-Event-ID", second.last)
	require.Equal(t, missed, []string{third.told(), third.told()}, "the header wins, as an EventSource keeps its URL")
	last := o.save("user:bob")
	require.Equal(t, last, third.told())
	all := listen(s, streams+"bob?after=0")
	require.Equal(t, append([]string{early}, append(missed, last)...), []string{all.told(), all.told(), all.told(), all.told()})
}

func TestACallerHearsItselfAlone(t *testing.T) {
	t.Parallel()
	s, _ := ownServer.serveWithNATS(t)
	ann, bob := s.caller("ann", "submitter"), s.caller("bob", "receiver")
	listen(bob, streams+"bob")
	listen(s, streams+"bob")
	for who, refused := range map[*server]string{ann: streams + "bob", bob: streams + "ann", s.caller("sends", "sender"): streams + "sends"} {
		got := who.get(refused)
		require.Equal(t, 403, got.status)
		require.Equal(t, "forbidden", got.body["error"])
	}
	require.Equal(t, 401, (&server{t: t, url: s.url, user: "bob", password: "x"}).get(streams+"bob").status)
	require.Equal(t, []string{"user"}, s.get(streams+"a%20b").fields())
	require.Equal(t, []string{"after"}, s.get(streams+"bob?after=x").fields())
	require.Equal(t, []string{"Last-Event-ID"}, s.do("GET", streams+"bob", "", "Last-Event-ID", "18446744073709551615").fields())
}

func TestAStreamEndsByItselfOrWithItsProcess(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	s, p := o.startAll("SENDONCE_STREAM_MAX=5s")
	began := time.Now()
	listen(s, streams+"bob").end()
	require.InDelta(t, 5, time.Since(began).Seconds(), 2)

	const listeners = 50
	ears := make([]*streamReader, listeners)
	for i := range ears {
		ears[i] = listen(s, fmt.Sprintf("%suser-%d", streams, i))
	}
	began = time.Now()
	require.NoError(t, p.Signal(15))
	for _, e := range ears {
		e.end()
	}
	require.Less(t, time.Since(began), 3*time.Second, "long before their time")
	exited(t, p)
	require.Zero(t, p.ExitCode())
}

func TestAStreamGoesOnWhenNATSIsBack(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	s, _ := o.startAll()
	bob := listen(s, streams+"bob")
	before := o.save("user:bob")
	require.Equal(t, before, bob.told())
	require.NoError(t, o.nats.Stop())
	var refused reply
	require.Eventually(t, func() bool {
		refused = s.do("GET", streams+"bob", "")
		return refused.status == 503
	}, waitLimit, 10*time.Millisecond)
	require.Equal(t, "server_busy", refused.body["error"])
	require.NotEmpty(t, refused.header.Get("Retry-After"))
	meanwhile := o.save("user:bob")
	o.nats = natsIn(t, o.options)
	require.Equal(t, meanwhile, bob.told(), "on the same connection")
	after := o.save("user:bob")
	require.Equal(t, after, bob.told())
}

func TestWhatCannotBeToldHoldsUpNothing(t *testing.T) {
	t.Parallel()
	s, nc := ownServer.serveWithNATS(t)
	broker, err := bus.Open(bus.Config{URL: nc.ConnectedUrl(), Replicas: 1}, sandbox.Log(t))
	require.NoError(t, err)
	t.Cleanup(broker.Close)
	bob := listen(s, streams+"bob")
	for id, data := range []string{`{"broken":`, "{\n\"whole\":\r\n1}"} {
		event := cloudevents.NewEvent()
		event.SetID(fmt.Sprint(id))
		event.SetSource("/test")
		event.SetType("text")
		require.NoError(t, event.SetData(cloudevents.ApplicationJSON, []byte(data)))
		require.NoError(t, broker.Publish(t.Context(), []bus.Message{{Subject: bus.UserSubject("bob"), Event: event}})[0])
	}
	require.Equal(t, "1", bob.told())
	require.Contains(t, bob.text.String(), ": event 1 is not readable and skipped\n\nid: 1\n\nid: 2\n")

	js, err := jetstream.New(nc)
	require.NoError(t, err)
	users, err := js.Stream(t.Context(), bus.StreamUsers)
	require.NoError(t, err)
	require.NoError(t, users.Purge(t.Context(), jetstream.WithPurgeSequence(2)))
	late := listen(s, streams+"bob", "Last-Event-ID", "0")
	require.Equal(t, "1", late.told(), "all that is kept")
	require.NoError(t, users.Purge(t.Context()))
	late = listen(s, streams+"bob", "Last-Event-ID", "1")
	late.block()
	require.Regexp(t, `^id: 2\n\nid: 2\nevent: gap\ndata: \{"after":1,"next":3,"message":"[^<>\\]+"\}\n\n$`, late.text.String())
}

func TestHundredsOfStreamsAreTheirUsersOwnAndAskTheDatabaseNothing(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	s := o.at(o.start("stream"))
	admin := o.at(o.start("admin"))
	caller := admin.caller("u-0", "receiver")
	caller.url = s.url
	broker, err := bus.Open(bus.Config{URL: o.nats.URL(), Replicas: 1}, sandbox.Log(t))
	require.NoError(t, err)
	t.Cleanup(broker.Close)
	require.NoError(t, broker.Ensure(t.Context()))
	const users = 200
	ears, messages := make([]*streamReader, users), make([]bus.Message, users)
	for i := range users {
		who := s
		if i == 0 {
			who = caller
		}
		name := fmt.Sprintf("u-%d", i)
		ears[i] = listen(who, streams+name)
		event := cloudevents.NewEvent()
		event.SetID(name)
		event.SetSource("/test")
		event.SetType("text")
		messages[i] = bus.Message{Subject: bus.UserSubject(name), Event: event}
	}
	before := o.looker.lastStatement()
	for _, err := range broker.Publish(t.Context(), messages) {
		require.NoError(t, err)
	}
	for i, e := range ears {
		require.Equal(t, fmt.Sprintf("u-%d", i), e.told())
	}
	require.Equal(t, before, o.looker.lastStatement())
}
