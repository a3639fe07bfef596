package fn

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// callerRegistry is a source of the callers of knownCallers. A test can change all of them except receiver.
type callerRegistry struct {
	mu      sync.Mutex
	apply   func(*callers.Caller)
	err     error
	lookups atomic.Int64
}

// useRegistry makes a registry the source of the server's callers.
func (h *testServer) useRegistry() *callerRegistry {
	c := &callerRegistry{apply: func(*callers.Caller) {}}
	h.setCallers(func(ctx context.Context, name string, forList bool) (callers.Caller, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lookups.Add(1)
		caller, err := knownCallers(ctx, name, forList)
		if name != "receiver" {
			c.apply(&caller)
		}
		return caller, errors.Join(err, c.err)
	})
	return c
}

func (c *callerRegistry) change(apply func(*callers.Caller)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apply = apply
}

// fail makes lookups fail with err; nil = lookups succeed again.
func (c *callerRegistry) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// changesOfACaller are changes that end the streams and sockets of the caller.
var changesOfACaller = map[string]func(*callers.Caller){
	"is revoked":        func(c *callers.Caller) { c.Revoked = true },
	"has another token": func(c *callers.Caller) { c.Proof = []byte("another") },
	"lost its role":     func(c *callers.Caller) { c.Roles = []string{"sender"} },
	"has another queue": func(c *callers.Caller) { c.Queues = []string{"a"} },
	"has one more role": func(c *callers.Caller) { c.Roles = append(c.Roles, "sender") },
}

// ticking sends an event every second.
func ticking(ctx context.Context, _ *Call, _ streamRequest, w *EventWriter) error {
	for {
		if err := w.Send("1", "message", []byte("{}")); err != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reading is what a client has read of a stream.
type reading struct {
	text sandbox.LogBuffer
	done chan struct{}
}

// events counts the events that have arrived.
func (r *reading) events() int {
	synctest.Wait()
	return strings.Count(r.text.String(), "data:")
}

// openAs begins a stream in memory and reads it.
func (p *pipes) openAs(t *testing.T, name string) *reading {
	conn := p.open(t, authorization(name, "token"))
	t.Cleanup(func() { _ = conn.Close() })
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, 200, res.StatusCode)
	r := &reading{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		_, _ = io.Copy(&r.text, res.Body)
	}()
	return r
}

func TestStreamEndsWhenCallerChanges(t *testing.T) {
	t.Parallel()
	for name, change := range changesOfACaller {
		for how, c := range map[string]struct {
			notify bool
			atMost time.Duration
		}{
			"with notification":    {true, 0},
			"without notification": {false, auth.CallerTTL},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					h, server, stop := serveInMemory(t, streamer(ticking))
					registry := h.useRegistry()
					stream, other := server.openAs(t, "submitter"), server.openAs(t, "receiver")
					time.Sleep(5500 * time.Millisecond)
					registry.change(change)
					if c.notify {
						h.env.CallersChanged(t.Context(), "submitter")
					}
					changed := time.Now()
					<-stream.done
					require.LessOrEqual(t, time.Since(changed), c.atMost)
					require.True(t, strings.HasSuffix(stream.text.String(), "retry: 250\n\n"), "the client reconnects, and is authenticated again")
					require.Contains(t, []any{"unauthenticated", "forbidden"}, h.callLines(1)[0]["error"])
					if c.notify {
						require.Equal(t, 6, stream.events(), "only the events before the change")
					}
					before := other.events()
					time.Sleep(3 * time.Second)
					require.GreaterOrEqual(t, other.events(), before+2, "another caller's stream goes on")
					stop()
				})
			})
		}
	}
}

func TestStreamPausesWhileCallerLookupFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, server, stop := serveInMemory(t, streamer(ticking))
		registry := h.useRegistry()
		stream := server.openAs(t, "submitter")
		time.Sleep(5500 * time.Millisecond)
		registry.fail(context.DeadlineExceeded)
		h.env.auth.Callers.ForgetAll() // as after a reconnect to NATS
		time.Sleep(30 * time.Second)
		require.Equal(t, 6, stream.events())
		require.Contains(t, stream.text.String(), "\n:\n", "the stream stays open")
		registry.fail(nil)
		time.Sleep(2 * time.Second)
		require.Less(t, 6, stream.events())
		stop()
	})
}

func TestSocketEndsWhenCallerChanges(t *testing.T) {
	t.Parallel()
	for name, change := range changesOfACaller {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestServer(t, nil)
			registry := h.useRegistry()
			runServer(t, h, nil, sayFunction(echo))
			c, other := h.dial(nil, as("submitter", "token")), h.dial(nil, as("receiver", "token"))
			c.send(`{"say":"a"}`)
			require.Contains(t, c.read(), `"a"`)
			registry.change(change)
			h.env.CallersChanged(t.Context(), "submitter")
			want := websocket.StatusGoingAway
			if name == "is revoked" || name == "has another token" {
				want = websocket.StatusPolicyViolation
			}
			require.Equal(t, want, c.closed().Code)
			require.Contains(t, []any{"unauthenticated", "forbidden"}, h.callLines(2)[1]["error"])
			other.send(`{"say":"b"}`)
			require.Contains(t, other.read(), `"b"`)
		})
	}
}

func TestSocketSendsNothingAfterRevocation(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, nil)
	registry := h.useRegistry()
	sent := make(chan error, 1)
	runServer(t, h, nil, HTTP("late", func(*Env, struct{}) Routes {
		return Routes{"GET /api/v1/stream": WithSocket(Stream(Receiver, waits).Or(Submitter), nil, func(_ context.Context, c *Call, _ streamRequest, s *Socket) error {
			if err := s.Open(10, echo); err != nil {
				return err
			}
			if err := s.Send(api.SocketFrame{Event: api.SocketMark}); err != nil {
				return err
			}
			registry.change(func(c *callers.Caller) { c.Revoked = true })
			h.env.auth.Callers.Forget(c.Caller.Name)
			err := s.Send(api.SocketFrame{Event: api.SocketMark})
			sent <- err
			return err
		})}
	}))
	c := h.dial(nil, as("submitter", "token"))
	require.Equal(t, websocket.StatusPolicyViolation, c.closed().Code)
	require.ErrorContains(t, <-sent, "revoked")
}

func TestRecheckUsesPresentStateOfCaller(t *testing.T) {
	t.Parallel()
	for name, change := range changesOfACaller {
		for _, notify := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				h := &testServer{t: t, env: &Env{}}
				registry := h.useRegistry()
				caller, _, err := h.env.auth.Callers.Current(t.Context(), "submitter")
				require.NoError(t, err)
				c := &Call{env: h.env, roles: []Role{Submitter}, Caller: caller}
				changed, err := c.Recheck(t.Context())
				require.NoError(t, err)
				registry.change(change)
				if notify {
					h.env.auth.Callers.Forget("submitter")
					<-changed
				} else {
					time.Sleep(auth.CallerTTL)
				}
				_, err = c.Recheck(t.Context())
				require.Equal(t, map[string]string{
					"is revoked": "unauthenticated", "has another token": "unauthenticated", "lost its role": "forbidden",
				}[name], task.CodeOf(err), name)
				require.Equal(t, name != "has another queue", c.MayUseQueue("b"), "the call uses the present state of the caller")
			})
		}
	}
}

// beginCall sends a call without the last byte of its body.
func (p *pipes) beginCall(t *testing.T, name string) net.Conn {
	conn := p.dial()
	t.Cleanup(func() { _ = conn.Close() })
	_, err := io.WriteString(conn, "POST /api/v1/say HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"+
		authorization(name, "token")+"\r\n{")
	require.NoError(t, err)
	return conn
}

// finishCall sends the last byte and returns the response.
func finishCall(t *testing.T, conn net.Conn) (status int, body string) {
	_, err := io.WriteString(conn, "}")
	require.NoError(t, err)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(text)
}

func TestCallerIsCheckedAgainAfterItsBody(t *testing.T) {
	t.Parallel()
	want := map[string]int{"is revoked": 401, "has another token": 401, "lost its role": 403, "has another queue": 200, "has one more role": 200}
	for name, change := range changesOfACaller {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				handled := map[string][]string{} // the queues of callers whose calls reached the function
				h, server, stop := serveInMemory(t, HTTP("sayer", func(*Env, struct{}) Routes {
					return Routes{"POST /api/v1/say": JSON(Submitter, func(_ context.Context, c *Call, _ struct{}) (any, error) {
						handled[c.Caller.Name] = c.Caller.Queues
						return nil, nil
					}).Or(Receiver)}
				}))
				registry := h.useRegistry()
				slow, other := server.beginCall(t, "submitter"), server.beginCall(t, "receiver")
				time.Sleep(bodyTimeout / 2)
				lookups := registry.lookups.Load()
				require.EqualValues(t, 2, lookups)
				registry.change(change)
				h.env.CallersChanged(t.Context(), "submitter")

				status, body := finishCall(t, slow)
				require.Equal(t, want[name], status, body)
				if status == 200 {
					require.Equal(t, name == "has another queue", len(handled["submitter"]) > 0, "the call uses the present state of the caller")
				} else {
					require.NotContains(t, handled, "submitter")
				}
				require.EqualValues(t, lookups+1, registry.lookups.Load())

				status, body = finishCall(t, other)
				require.Equal(t, 200, status, body)
				require.Contains(t, handled, "receiver")
				require.EqualValues(t, lookups+1, registry.lookups.Load(), "a caller that was not changed is not looked up again")
				stop()
			})
		})
	}
}

func TestRecheckOfUnchangedCallerAllocatesNothing(t *testing.T) {
	h := &testServer{t: t, env: &Env{}}
	h.setCallers(knownCallers)
	caller, _, err := h.env.auth.Callers.Current(t.Context(), "submitter")
	require.NoError(t, err)
	c := &Call{env: h.env, roles: []Role{Submitter}, Caller: caller}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := c.Recheck(t.Context()); err != nil {
			t.Error(err)
		}
	}))
}
