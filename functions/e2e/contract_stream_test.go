package e2e

import (
	"io"
	"log/slog"
	"net/http"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/functions/internal/contract"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
)

// streams makes the calls of streams, to another server, which has NATS.
func (s checkedClient) streams() {
	s.T.Helper()
	server, nc := s.Host.ServeWithNATS(s.T)
	broker, err := bus.Open(bus.Config{URL: nc.ConnectedUrl(), Replicas: 1}, slog.New(slog.DiscardHandler))
	require.NoError(s.T, err)
	s.T.Cleanup(broker.Close)
	chat := checkedClient{server, s.checker}
	ann := chat.as(chat.NewCaller("ann", "submitter"))
	ann.post(200, cluster.MessagesPath, `{"client_msg_id":"c-1","to":"user:ann","data":{"text":"你好"}}`)
	chat.post(204, "/events/relay", "{}", cluster.TickHeader...)
	ack := cloudevents.NewEvent()
	ack.SetID("1")
	ack.SetSource("/sendonce")
	ack.SetType("sendonce.ack.saved.v1")
	require.NoError(s.T, ack.SetData(cloudevents.ApplicationJSON, api.LateAck{
		AckType: "saved", From: "ann", ClientMsgID: "c-1", ServerMsgID: cluster.UnknownIDPath[1:], AcceptSeq: 7, SavedAt: time.Now().UTC(),
	}))
	require.NoError(s.T, broker.Publish(s.T.Context(), []bus.Message{{Subject: bus.UserSubject("ann"), Event: ack}})[0])

	all := ann.readStream(cluster.StreamsPath+"ann?after=0", 2)
	require.Equal(s.T, "message", all[0].Kind)
	require.Equal(s.T, "ack", all[1].Kind)
	for i, schema := range []string{"CloudEvent", "LateAck"} {
		require.NoError(s.T, s.checker.Contract.CheckJSON(contract.Pointer("components", "schemas", schema), []byte(all[i].Data)), all[i].Data)
	}
	require.Equal(s.T, all[1:], chat.readStream(cluster.StreamsPath+"ann", 1, "Last-Event-ID", all[0].ID), "an admin may read every stream")
	token := ann.post(200, cluster.StreamsPath+"ann/token", "").Data("token").(string)
	ann.readStream(cluster.StreamsPath+"ann?after=0&token="+token, 1)
	ann.post(400, cluster.StreamsPath+"a%20b/token", "")
	ann.post(403, cluster.StreamsPath+"bob/token", "")
	ann.upgrade(cluster.StreamsPath + "ann")
	ann.call(400, "GET", cluster.StreamsPath+"ann", "", "Last-Event-ID", "the first")
	ann.get(400, cluster.StreamsPath+"ann?after=-1")
	ann.get(403, cluster.StreamsPath+"bob")
}

var websocketHeaders = map[string]string{
	"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}

// upgrade opens a WebSocket, reads its first frame and closes it.
func (s checkedClient) upgrade(path string) {
	s.T.Helper()
	req := s.Request(s.T.Context(), "GET", path, "")
	for name, value := range websocketHeaders {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(s.T, err)
	require.Empty(s.T, s.checker.Problems(req, nil, res, nil))
	head := make([]byte, 2) // the type and the length of the frame
	_, err = io.ReadFull(res.Body, head)
	require.NoError(s.T, err)
	require.EqualValues(s.T, 0x81, head[0], "a text frame, not continued")
	frame := make([]byte, head[1])
	_, err = io.ReadFull(res.Body, frame)
	require.NoError(s.T, err)
	require.NoError(s.T, s.checker.Contract.CheckJSON(contract.Pointer("components", "schemas", "SocketFrame"), frame), string(frame))
	require.NoError(s.T, res.Body.Close())
}

// readStream reads n events of a stream.
func (s checkedClient) readStream(path string, n int, header ...string) []cluster.StreamEvent {
	s.T.Helper()
	e := cluster.OpenStream(s.Client, path, header...)
	events := make([]cluster.StreamEvent, n)
	for i := range events {
		events[i] = e.Event()
	}
	e.Close()
	for _, problem := range s.checker.Problems(e.Req, nil, e.Res, []byte(e.Text.String())) {
		s.T.Errorf("GET %s returned %s: %s", path, e.Text.String(), problem)
	}
	return events
}
