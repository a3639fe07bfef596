package fn

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	// pongTimeout is longer than the time for a frame, because no pong is read while a frame is handled.
	pongTimeout  = bodyTimeout + defaultTimeout + 5*time.Second
	closeTimeout = 5 * time.Second // for the client's reply to the close frame
)

// FrameHandler handles one text frame of a client, c.Body, as a call with its own deadline, log line
// and metrics. The handler must check the role of the caller. The response is sent as JSON. An error
// is sent as a SocketFrame with the event api.SocketError and the client_msg_id that c.Correlate has
// set.
type FrameHandler func(ctx context.Context, c *Call) (response any, err error)

// Socket is one WebSocket with text frames of JSON. A frame here is a message of RFC 6455, with all its
// parts. The client's frames are handled one at a time, in order, and each gets one response. A frame
// waits while framesAtOnce frames of the same caller are handled, and the frames after it stay unread in
// the connection. If the client does not read a frame within 10 s, the socket ends, so no frames are
// buffered for a slow client. Send copies the frame: reserve memory for both copies of a large frame. A
// ping is sent 15 s after each pong.
//
// When the service ends a socket, the frame that is being handled gets its response first; later
// frames are discarded. The close code is
//
//   - 1001 after the timeout, when the process drains, or when the caller was changed,
//   - 1008 when the caller was revoked or its token replaced, or after too many pings, pongs or
//     parts of one message,
//   - 1009 after a frame that is too large,
//   - 1013 after any other error of the route's handler.
type Socket struct {
	req    *request
	ctx    context.Context // of the route's handler
	cancel context.CancelCauseFunc

	conn     *websocket.Conn // nil until Open
	raw      *meteredConn
	handle   FrameHandler
	maxFrame int64
	received chan struct{} // closed when receive has returned

	controls      int // pings and pongs since controlsSince; used by the goroutine that reads
	controlsSince time.Time

	frameLock chan struct{} // full while a frame is handled
	ended     bool          // further frames are discarded; guarded by frameLock

	mu    sync.Mutex
	err   error                 // why the client is lost; nil = not lost
	flood error                 // errControls or errParts, if the client sent too many pings, pongs or parts
	close *websocket.CloseError // set by closeWith; nil = closeReason decides
	sent  int                   // bytes of frames
}

// Open responds with 101 and begins to read frames of at most maxFrame bytes.
func (s *Socket) Open(maxFrame int64, handle FrameHandler) error {
	w := &hijacker{ResponseWriter: s.req.w}
	conn, err := websocket.Accept(w, s.req.r, &websocket.AcceptOptions{
		InsecureSkipVerify: true, // checkUpgrade has checked the origin
		OnPingReceived:     func(context.Context, []byte) bool { return s.control() },
		OnPongReceived:     func(context.Context, []byte) { s.control() },
	})
	s.req.status = cmp.Or(w.status, http.StatusSwitchingProtocols)
	if err != nil {
		return err
	}
	s.req.call.dropHeaders()
	conn.SetReadLimit(-1) // read has a limit of its own, with a better error
	w.conn.excess = func() { s.flooded(errParts) }
	s.conn, s.raw, s.handle, s.maxFrame, s.received = conn, w.conn, handle, maxFrame, make(chan struct{})
	go s.receive()
	go s.ping()
	return nil
}

// Send sends one frame. If the caller was revoked or changed, nothing is sent, and the socket ends.
// If a write fails, the client is lost: all further writes fail.
func (s *Socket) Send(frame any) error {
	if err := s.req.confirmUnchanged(s.ctx, s.cancel); err != nil {
		return err
	}
	return s.send(frame)
}

func (s *Socket) send(frame any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(frame); err != nil {
		return fmt.Errorf("encode a frame: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), clientWriteTimeout)
	defer cancel()
	if err := s.conn.Write(ctx, websocket.MessageText, bytes.TrimSuffix(text.Bytes(), []byte("\n"))); err != nil {
		return s.lose(fmt.Errorf("write a frame: %w", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent += text.Len()
	return s.err
}

// lose records why the client is lost, unless it is lost already, and ends the context of the handler. It returns the
// first reason.
func (s *Socket) lose(err error) error {
	defer s.cancel(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	return s.err
}

// closeWith sets the code and the reason of the close frame, and ends the context of the handler. If closeWith is
// called twice, the first code and reason are sent. The reason must have at most 123 bytes.
func (s *Socket) closeWith(code websocket.StatusCode, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.close == nil {
		s.close = &websocket.CloseError{Code: code, Reason: reason}
	}
	s.cancel(nil)
}

// control counts a ping or a pong of the client, and reports whether a ping gets a pong.
func (s *Socket) control() bool {
	if now := time.Now(); now.Sub(s.controlsSince) > controlsWithin {
		s.controlsSince, s.controls = now, 0
	}
	if s.controls++; s.controls > maxControls {
		s.flooded(errControls)
		return false
	}
	return true
}

// flooded stops reading from the socket and ends it with err, which is errControls or errParts.
func (s *Socket) flooded(err error) {
	s.raw.end(0)
	s.closeWith(websocket.StatusPolicyViolation, err.Error())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flood = cmp.Or(s.flood, err)
}

// ping keeps proxies from closing the socket as idle, and detects a lost client.
func (s *Socket) ping() {
	for {
		select {
		case <-time.After(heartbeat):
		case <-s.received:
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), pongTimeout)
		err := s.conn.Ping(ctx)
		cancel()
		if err != nil {
			_ = s.lose(fmt.Errorf("no pong: %w", err))
			return
		}
	}
}

// receive reads and handles frames until the client is lost or the socket ends.
func (s *Socket) receive() {
	defer close(s.received)
	for s.handleNext() {
	}
}

// handleNext reads and handles one frame, and reports whether to read another frame.
func (s *Socket) handleNext() (more bool) {
	memory, body, err := s.read()
	defer memory.release()
	var closed websocket.CloseError
	switch {
	case errors.As(err, &closed):
		s.closeWith(closed.Code, closed.Reason) // the library has replied to the close frame
		return false
	case errors.Is(err, errParts):
		return false // flooded has recorded it
	case errors.As(err, new(*task.Error)): // handleOrRefuse refuses the frame
	case errors.Is(err, net.ErrClosed):
		return false // a failed write or ping has closed the connection and recorded why
	case err != nil:
		_ = s.lose(fmt.Errorf("read a frame: %w", err))
		return false
	}
	return s.handleOrRefuse(memory, body, err)
}

// handleOrRefuse refuses a frame if refusal is not nil, else handles the frame. It reports whether to read
// another frame.
func (s *Socket) handleOrRefuse(memory *callMemory, body []byte, refusal error) (more bool) {
	done, err := s.req.env.frames.acquire(s.ctx, s.req.call.Caller.QuotaName())
	if err != nil {
		return true // the socket is ending: reading goes on until the client's close frame
	}
	s.frameLock <- struct{}{}
	defer func() { <-s.frameLock }()
	if s.ended {
		done()
		return true // as above
	}
	response := s.respond(memory, body, refusal)
	done()
	if err := s.send(response); err != nil {
		return false
	}
	if task.CodeOf(refusal) == codeTooLarge {
		s.closeWith(websocket.StatusMessageTooBig, refusal.Error()) // the rest of the frame is not read
		return false
	}
	return true
}

// read returns one frame and its memory. The caller must release the memory, also after an error. A
// *task.Error says why to refuse the frame.
func (s *Socket) read() (memory *callMemory, body []byte, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	kind, r, err := s.conn.Reader(ctx)
	if err != nil {
		return nil, nil, err
	}
	timeout := time.AfterFunc(bodyTimeout, cancel) // when ctx is cancelled, the library closes the connection
	defer timeout.Stop()
	s.raw.allow(2*s.maxFrame + framingBytes)
	defer s.raw.allow(math.MaxInt64)
	limited := &io.LimitedReader{R: r, N: s.maxFrame + 1}
	if memory, err = s.req.env.budget.enter(s.req.call.Caller.QuotaName(), s.req.call.May(Admin), false); err == nil {
		reader := bodyReader{memory: memory, charge: chunkCharge}
		body, err = reader.read(ctx, limited, -1, func() error { return nil })
	}
	if task.CodeOf(err) == task.CodeServerBusy { // discard the rest of this frame, so that the next frame can be read
		if _, lost := io.Copy(io.Discard, limited); lost != nil {
			return memory, nil, lost
		}
	}
	switch {
	case limited.N == 0:
		return memory, nil, tooLargeFrame(s.maxFrame)
	case err != nil:
		return memory, nil, err
	case kind != websocket.MessageText:
		return memory, nil, task.Invalid([]task.Field{{Name: "body", Message: "must be a text frame"}})
	}
	return memory, body, nil
}

// respond handles or refuses a frame as a call of its own and returns the response.
func (s *Socket) respond(memory *callMemory, body []byte, refusal error) (response any) {
	req := &request{env: s.req.env, r: s.req.r, start: time.Now(), function: s.req.function, route: s.req.route + " frame", status: http.StatusOK}
	req.call = Call{
		Caller: s.req.call.Caller, RequestID: s.req.call.RequestID, SourceIP: s.req.call.SourceIP, UserAgent: s.req.call.UserAgent,
		Body: body, r: s.req.r, memory: memory, header: http.Header{}, status: http.StatusOK,
	}
	defer func() {
		if r := recover(); r != nil {
			req.call.Log("stack", string(debug.Stack()))
			response = req.refuseFrame(fmt.Errorf("panic: %v", r))
		}
		req.log()
		req.count()
	}()
	if refusal != nil {
		return req.refuseFrame(refusal)
	}
	response, err := s.handleAsCall(req)
	if err != nil {
		return req.refuseFrame(err)
	}
	return response
}

// handleAsCall authenticates the caller of a frame, acquires a slot and calls the handler.
func (s *Socket) handleAsCall(req *request) (response any, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), defaultTimeout)
	defer cancel()
	// The caller may have been revoked, or its token replaced, since the socket was opened.
	if req.call.Caller, err = req.authenticate(ctx, false); err != nil {
		if task.CodeOf(err) == auth.CodeUnauthenticated {
			s.closeWith(websocket.StatusPolicyViolation, err.Error())
		}
		return nil, err
	}
	// The frame needs a slot of the pool calls. The socket itself has a slot of the pool waiting.
	slot, err := req.env.limiter.acquireSlot(req.call.Caller, false, false)
	if err != nil {
		return nil, err
	}
	req.call.slot = slot
	defer slot.release()
	return s.handle(store.WithCaller(ctx, req.call.Caller.Account()), &req.call)
}

// refuseFrame sets the status and error for the log line of a frame, and returns the error frame for the client.
func (req *request) refuseFrame(err error) api.SocketFrame {
	refusal := refusalOf(err, req.call.RequestID)
	req.err, req.code, req.status = err, refusal.Code, statusOf(refusal.Code)
	data, err := json.Marshal(api.SocketFailure{
		Code: req.status, Message: refusal.Message, Error: refusal.Code, Fields: wireFields(refusal.Fields),
		ClientMsgID: req.call.correlation, RetryAfterSeconds: retryAfter(refusal),
	})
	if err != nil {
		panic(err) // the fields are only strings and numbers
	}
	return api.SocketFrame{Event: api.SocketError, Data: data}
}

// end closes the socket, with a close handshake unless the client is lost. err is the error of the
// route's handler. end returns the error to respond with, if Open was not called, or to log.
func (s *Socket) end(err error) error {
	if s.conn == nil {
		return err
	}
	s.frameLock <- struct{}{} // waits until the frame that is being handled has its response
	s.ended = true
	<-s.frameLock
	s.mu.Lock()
	lost, flood, reason := s.err, s.flood, s.close
	s.mu.Unlock()
	refusal := revocationOf(s.ctx)
	if lost != nil {
		_ = s.conn.CloseNow() // no handshake: the client would not reply
	} else {
		if reason == nil {
			reason = s.req.closeReason(cmp.Or(refusal, err))
		}
		s.raw.end(closingBytes)
		_ = s.raw.SetDeadline(time.Now().Add(closeTimeout)) // fails on a connection that has ended
		_ = s.conn.Close(reason.Code, reason.Reason)        // a client that does not reply is cut off
	}
	<-s.received
	s.req.bytes = s.sent
	switch {
	case lost != nil:
		s.req.code, s.req.err = "client_gone", lost
	case flood != nil:
		s.req.code, s.req.err = "flood", flood
	case reason.Code == websocket.StatusTryAgainLater:
		return err
	}
	return refusal
}

// closeReason returns the close code and reason of a socket whose handler has returned err.
func (req *request) closeReason(err error) *websocket.CloseError {
	switch {
	case req.env.limiter.isDraining():
		return &websocket.CloseError{Code: websocket.StatusGoingAway, Reason: "this instance ends: connect again at once"}
	case task.CodeOf(err) == auth.CodeUnauthenticated:
		return &websocket.CloseError{Code: websocket.StatusPolicyViolation, Reason: err.Error()}
	case isRefusal(err):
		return &websocket.CloseError{Code: websocket.StatusGoingAway, Reason: err.Error()}
	case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &websocket.CloseError{Code: websocket.StatusGoingAway, Reason: "the time of this socket is up: connect again at once"}
	}
	return &websocket.CloseError{Code: websocket.StatusTryAgainLater, Reason: "the service is busy: connect again later"}
}

func tooLargeFrame(max int64) error {
	return task.Refuse(codeTooLarge, fmt.Sprintf("a frame must have at most %d bytes", max))
}
