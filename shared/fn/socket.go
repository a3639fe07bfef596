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
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	// pongTimeout is longer than a frame may be worked on: no pong is read meanwhile.
	pongTimeout  = bodyTimeout + defaultTimeout + 5*time.Second
	closeTimeout = 5 * time.Second // for the client's part of an orderly end
)

// WithSocket makes a Stream route upgrade to a WebSocket on request
// (RFC 6455, HTTP/1.1). Roles, the bound on calls, the timeout and the drain are
// those of the stream; the socket counts as a stream for as long as it lasts, and each
// frame as a call while it is worked on.
// origins are the origins of web pages, beside the service's own, that may open one.
//
// What handle returns before it has called Open is sent as every other
// route's error is. After that its return ends the socket, with a close code that
// says why.
func WithSocket[Req any](r Route, origins []string, handle func(ctx context.Context, c *Call, req Req, s *Socket) error) Route {
	plan := decode.PlanOf[Req]()
	r.socketOrigins = origins
	r.socket = func(ctx context.Context, c *Call, s *Socket) error {
		var req Req
		if err := plan.Parameters(c.request(), &req); err != nil {
			return err
		}
		return handle(ctx, c, req, s)
	}
	return r
}

// FrameHandler handles one text frame of a client, in the Body of c, which is a
// call of its own: it has its own deadline, log line and place in the metrics.
// What it returns is sent as JSON; an error as a SocketFrame of the kind
// api.SocketError. c.Correlate says which message that was about.
type FrameHandler func(ctx context.Context, c *Call) (response any, err error)

// Socket is one WebSocket of text frames in JSON. The client's frames are worked
// on one at a time, in their order, and each gets one response; what a client sends
// faster than that waits in its connection, as it does while framesAtOnce frames of
// the same caller are worked on. Each frame to the client is sent at once; one that
// the client does not take within 10 s ends the socket, so nothing piles up for a
// slow reader. Send holds a second copy of a frame meanwhile: reserve both where it is
// large. A ping follows every 15 s.
//
// The service ends a socket with a close code: 1001 when its time is up or the
// process ends or what the caller may do was changed, 1008 when the caller was revoked
// or its token replaced, or after too many pings, pongs or parts of one message, 1009
// after a frame that is too large, 1013 after an error of the handler. The frame that
// is being worked on gets its response first; those behind it are not looked at.
type Socket struct {
	req    *request
	ctx    context.Context // the handler's
	cancel context.CancelCauseFunc

	conn     *websocket.Conn // nil until Open
	raw      *meteredConn
	handle   FrameHandler
	maxFrame int64
	received chan struct{} // closed when nothing more is read

	controls      int // pings and pongs since controlsSince; used by what reads
	controlsSince time.Time

	frameLock chan struct{} // is full while a frame is worked on
	ended     bool          // guarded by frameLock

	mu    sync.Mutex
	err   error                 // why the client is lost
	flood error                 // what it sent too much of
	close *websocket.CloseError // why we end the socket, unless its time is up
	sent  int                   // bytes
}

// socket has the handler of a WebSocket run until ctx ends, and says how it went.
func (req *request) socket(ctx context.Context, p *mountedRoute) error {
	if err := req.checkUpgrade(p.socketOrigins); err != nil {
		return err
	}
	ctx, cancel := req.whileAdmitted(ctx)
	defer cancel(nil)
	s := &Socket{req: req, ctx: ctx, cancel: cancel, frameLock: make(chan struct{}, 1)}
	defer func() {
		if s.conn != nil {
			_ = s.conn.CloseNow() // of a handler that panics; it does nothing after end
		}
	}()
	return s.end(p.socket(ctx, &req.call, s))
}

// Open responds with 101 and begins to read frames of at most maxFrame bytes.
func (s *Socket) Open(maxFrame int64, take FrameHandler) error {
	w := &hijacker{ResponseWriter: s.req.w}
	conn, err := websocket.Accept(w, s.req.r, &websocket.AcceptOptions{
		InsecureSkipVerify: true, // checkUpgrade has verified it
		OnPingReceived:     func(context.Context, []byte) bool { return s.control() },
		OnPongReceived:     func(context.Context, []byte) { s.control() },
	})
	s.req.status = cmp.Or(w.status, http.StatusSwitchingProtocols)
	if err != nil {
		return err
	}
	s.req.call.dropHeaders()
	conn.SetReadLimit(-1) // read has its own, which says what is accepted
	w.conn.excess = func() { s.flooded(errParts) }
	s.conn, s.raw, s.handle, s.maxFrame, s.received = conn, w.conn, take, maxFrame, make(chan struct{})
	go s.receive()
	go s.ping()
	return nil
}

// Send sends one frame, unless the caller was revoked or changed meanwhile: that
// ends the socket. Another error means that the client is lost; it stays.
func (s *Socket) Send(frame any) error {
	if err := s.req.waitUntilAllowed(s.ctx, s.cancel); err != nil {
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

// lose notes why the client is lost, ends the handler and returns the first reason.
func (s *Socket) lose(err error) error {
	defer s.cancel(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	return s.err
}

// closeWith has the socket end with a code and a reason of at most 123 bytes.
func (s *Socket) closeWith(code websocket.StatusCode, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.close == nil {
		s.close = &websocket.CloseError{Code: code, Reason: reason}
	}
	s.cancel(nil)
}

// ping keeps what is in between from taking the socket for idle, and finds out
// that a client is gone.
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

// receive reads frames until the client is gone or the socket ends.
func (s *Socket) receive() {
	defer close(s.received)
	for s.frame() {
	}
}

// frame reads a frame, has it worked on, and says whether to go on. Whatever comes of
// it, what it was charged is given back.
func (s *Socket) frame() (more bool) {
	memory, body, err := s.read()
	defer memory.release()
	var closed websocket.CloseError
	switch {
	case errors.As(err, &closed):
		s.closeWith(closed.Code, closed.Reason) // the library has replied to it
		return false
	case errors.Is(err, errParts):
		return false // flooded has noted it
	case errors.As(err, new(*task.Error)):
	case errors.Is(err, net.ErrClosed):
		return false // here, by a write or a ping that failed and says why
	case err != nil:
		_ = s.lose(fmt.Errorf("read a frame: %w", err))
		return false
	}
	return s.work(memory, body, err)
}

// work handles a frame, or refuses it with bad, and says whether to go on.
func (s *Socket) work(memory *callMemory, body []byte, bad error) (more bool) {
	done, err := s.req.env.frames.acquire(s.ctx, s.req.call.Caller.QuotaName())
	if err != nil {
		return true // as where it is ending
	}
	s.frameLock <- struct{}{}
	defer func() { <-s.frameLock }()
	if s.ended {
		done()
		return true // the library reads on for the client's close
	}
	response := s.respond(memory, body, bad)
	done()
	if err := s.send(response); err != nil {
		return false
	}
	if task.CodeOf(bad) == codeTooLarge {
		s.closeWith(websocket.StatusMessageTooBig, bad.Error()) // the rest of it is not read
		return false
	}
	return true
}

// read returns one frame and what it is charged, which must be released also after
// an error. A *task.Error says what is wrong with the frame.
func (s *Socket) read() (memory *callMemory, body []byte, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	kind, r, err := s.conn.Reader(ctx)
	if err != nil {
		return nil, nil, err
	}
	late := time.AfterFunc(bodyTimeout, cancel) // its end closes the connection
	defer late.Stop()
	s.raw.allow(2*s.maxFrame + framingBytes)
	defer s.raw.allow(math.MaxInt64)
	limited := &io.LimitedReader{R: r, N: s.maxFrame + 1}
	if memory, err = s.req.env.budget.enter(s.req.call.Caller.QuotaName(), s.req.call.May(Admin), false); err == nil {
		reader := bodyReader{memory: memory, charge: chunkCharge}
		body, err = reader.read(ctx, limited, -1, func() error { return nil })
	}
	if task.CodeOf(err) == task.CodeServerBusy { // the rest must be read before the next frame
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

// respond handles a frame as a call of its own and returns its response.
func (s *Socket) respond(memory *callMemory, body []byte, bad error) (response any) {
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
	ctx, cancel := context.WithTimeout(context.Background(), defaultTimeout)
	defer cancel()
	err := bad
	if err == nil {
		// The token may have been revoked since the socket was opened.
		req.call.Caller, err = req.authenticate(ctx, false)
		if task.CodeOf(err) == auth.CodeUnauthenticated {
			s.closeWith(websocket.StatusPolicyViolation, err.Error())
		}
	}
	if err == nil {
		req.call.slot, err = req.env.limiter.acquireSlot(req.call.Caller, false, false) // the socket's is one of those that wait
	}
	if err == nil {
		defer req.call.slot.release()
		response, err = s.handle(store.WithCaller(ctx, req.call.Caller.Account()), &req.call)
	}
	if err != nil {
		return req.refuseFrame(err)
	}
	return response
}

// refuseFrame is the frame that says why another one was refused.
func (req *request) refuseFrame(err error) api.SocketFrame {
	refusal := refusalOf(err, req.call.RequestID)
	req.err, req.code, req.status = err, refusal.Code, statusOf(refusal.Code)
	data, err := json.Marshal(api.SocketFailure{
		Code: req.status, Message: refusal.Message, Error: refusal.Code, Fields: wireFields(refusal.Fields),
		ClientMsgID: req.call.correlation, RetryAfterSeconds: retryAfter(refusal),
	})
	if err != nil {
		panic(err) // it holds only strings and numbers
	}
	return api.SocketFrame{Event: api.SocketError, Data: data}
}

// end closes the socket in order, unless its client is lost, and says how it went.
func (s *Socket) end(err error) error {
	if s.conn == nil {
		return err
	}
	s.frameLock <- struct{}{} // once the frame that is worked on has its response
	s.ended = true
	<-s.frameLock
	s.mu.Lock()
	lost, flood, reason := s.err, s.flood, s.close
	s.mu.Unlock()
	refusal := revocationOf(s.ctx)
	if lost != nil {
		_ = s.conn.CloseNow() // without a handshake: the client would not reply
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

// closeReason is how a socket is closed whose handler has returned err.
func (req *request) closeReason(err error) *websocket.CloseError {
	switch {
	case req.env.limiter.isDraining():
		return &websocket.CloseError{Code: websocket.StatusGoingAway, Reason: "this instance ends: come back at once"}
	case task.CodeOf(err) == auth.CodeUnauthenticated:
		return &websocket.CloseError{Code: websocket.StatusPolicyViolation, Reason: err.Error()}
	case isRefusal(err):
		return &websocket.CloseError{Code: websocket.StatusGoingAway, Reason: err.Error()}
	case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &websocket.CloseError{Code: websocket.StatusGoingAway, Reason: "the time of this socket is up: come back at once"}
	}
	return &websocket.CloseError{Code: websocket.StatusTryAgainLater, Reason: "the service is busy: come back later"}
}

func tooLargeFrame(max int64) error {
	return task.Refuse(codeTooLarge, fmt.Sprintf("a frame must have at most %d bytes", max))
}
