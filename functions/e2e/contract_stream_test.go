package e2e

import (
	"io"
	"log/slog"
	"net/http"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
)

const streams = "/api/v1/stream/"

// tellOfStreams tells of a server of its own, which has a broker.
func (s story) tellOfStreams() {
	s.t.Helper()
	server, nc := s.host.serveWithNATS(s.t)
	broker, err := bus.Open(bus.Config{URL: nc.ConnectedUrl(), Replicas: 1}, slog.New(slog.DiscardHandler))
	require.NoError(s.t, err)
	s.t.Cleanup(broker.Close)
	chat := story{server, s.witness}
	ann := chat.as(chat.caller("ann", "submitter"))
	ann.post(200, post, `{"client_msg_id":"c-1","to":"user:ann","data":{"text":"你好"}}`)
	chat.post(204, "/events/relay", "{}", "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/test", "Ce-Type", "tick")
	saved := cloudevents.NewEvent()
	saved.SetID("1")
	saved.SetSource("/sendonce")
	saved.SetType("sendonce.ack.saved.v1")
	require.NoError(s.t, saved.SetData(cloudevents.ApplicationJSON, api.LateAck{
		AckType: "saved", From: "ann", ClientMsgID: "c-1", ServerMsgID: nowhere[1:], AcceptSeq: 7, SavedAt: time.Now().UTC(),
	}))
	require.NoError(s.t, broker.Publish(s.t.Context(), []bus.Message{{Subject: bus.UserSubject("ann"), Event: saved}})[0])

	all := ann.hear(streams+"ann?after=0", 2)
	require.Equal(s.t, "message", all[0].kind)
	require.Equal(s.t, "ack", all[1].kind)
	for i, schema := range []string{"CloudEvent", "LateAck"} {
		require.NoError(s.t, s.witness.contract.checkJSON(pointer("components", "schemas", schema), []byte(all[i].data)), all[i].data)
	}
	require.Equal(s.t, all[1:], chat.hear(streams+"ann", 1, "Last-Event-ID", all[0].id), "an admin hears anybody")
	ann.upgrade(streams + "ann")
	ann.call(400, "GET", streams+"ann", "", "Last-Event-ID", "the first")
	ann.get(400, streams+"ann?after=-1")
	ann.get(403, streams+"bob")
}

// upgrade asks for a WebSocket, reads its first frame and leaves it.
func (s story) upgrade(path string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path, nil)
	require.NoError(s.t, err)
	req.SetBasicAuth(s.user, s.password)
	for name, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	require.Empty(s.t, s.witness.problems(req, nil, res, nil))
	head := make([]byte, 2) // a text frame that is whole, and its length
	_, err = io.ReadFull(res.Body, head)
	require.NoError(s.t, err)
	require.EqualValues(s.t, 0x81, head[0])
	frame := make([]byte, head[1])
	_, err = io.ReadFull(res.Body, frame)
	require.NoError(s.t, err)
	require.NoError(s.t, s.witness.contract.checkJSON(pointer("components", "schemas", "SocketFrame"), frame), string(frame))
	require.NoError(s.t, res.Body.Close())
}

// hear listens to a stream until it has said n events.
func (s story) hear(path string, n int, header ...string) []streamEvent {
	s.t.Helper()
	e := listen(s.server, path, header...)
	events := make([]streamEvent, n)
	for i := range events {
		events[i] = e.event()
	}
	e.leave()
	for _, problem := range s.witness.problems(e.req, nil, e.res, []byte(e.text.String())) {
		s.t.Errorf("GET %s answered %s: %s", path, e.text.String(), problem)
	}
	return events
}
