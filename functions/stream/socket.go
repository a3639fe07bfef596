package stream

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/intake"
	"github.com/sendonce/sendonce/shared/task"
)

// socket sends a user's events, as streamer.stream does, and submits the messages that the client sends.
func (s *streamer) socket(ctx context.Context, c *fn.Call, req request, socket *fn.Socket) error {
	f, err := s.openFollower(ctx, c, req)
	if err != nil {
		return err
	}
	defer f.Close()
	user := c.PathValue("user")
	err = socket.Open(intake.MaxBody, func(ctx context.Context, c *fn.Call) (any, error) { return s.submit(ctx, c, user) })
	if err != nil {
		return err
	}
	return serve(ctx, c, socketWriter{socket}, f)
}

// submit submits the message of one frame, and returns the frame that acknowledges it. The sender is user, unless the
// frame names another sender, which only an admin may do.
func (s *streamer) submit(ctx context.Context, c *fn.Call, user string) (any, error) {
	var req intake.Request
	bad := decode.Object(c.Body, &req)
	c.Correlate(req.ClientMsgID)
	switch {
	case !c.May(fn.Submitter):
		return nil, task.Refuse(task.CodeForbidden, "this needs the role "+string(fn.Submitter))
	case bad != nil:
		return nil, bad
	case req.From == "":
		req.From = user
	}
	submitted, err := s.intake.Submit(ctx, c, req)
	if err != nil {
		return nil, err
	}
	ack := submitted.Ack
	return frame(api.StreamAck, api.SocketAck{
		AckType: ack.Ack, From: ack.From, ClientMsgID: ack.ClientMsgID, ServerMsgID: ack.ServerMsgID,
		Status: ack.Status, State: ack.State, Replayed: submitted.Replayed, Archived: ack.Archived, SavedAt: fn.Instant(submitted.SavedAt),
		Durability: ack.Durability, AcceptedAt: ack.AcceptedAt, AcceptSeq: ack.AcceptSeq, Ordering: ack.Ordering,
	})
}

// frame returns a frame without an id, that is, one that is no event of the stream.
func frame(event string, data any) (api.SocketFrame, error) {
	text, err := json.Marshal(data)
	return api.SocketFrame{Event: event, Data: text}, err
}

// socketWriter is a writer of WebSocket frames.
type socketWriter struct{ socket *fn.Socket }

func (w socketWriter) Send(id, event string, data []byte) error {
	return w.sendFrame(id, api.SocketFrame{Event: event, Data: data})
}

func (w socketWriter) Mark(id string) error {
	return w.sendFrame(id, api.SocketFrame{Event: api.SocketMark})
}

func (w socketWriter) sendFrame(id string, f api.SocketFrame) error {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return err
	}
	f.ID = new(api.ID(n))
	return w.socket.Send(f)
}

func (w socketWriter) Comment(text string) error {
	f, err := frame(api.SocketNotice, api.SocketNote{Message: text})
	if err != nil {
		return err
	}
	return w.socket.Send(f)
}
