package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/sendonce/sendonce/shared/task"
)

// Settings of the attacker's process.
const (
	attackerVariable  = "SENDONCE_ATTACKER"   // the name of the attack
	attackURLVariable = "SENDONCE_ATTACK_URL" // the URL of the attacked process
)

// attacking is what the attacker's process prints when it begins.
const attacking = "attacking"

// attacker makes the calls of an attack in a process of its own. In `make attack` the process has the lowest priority,
// so that it takes no processor time from the attacked process: a real attacker uses another machine.
type attacker struct {
	url       string // of the attacked process
	caller    string // the name of the caller
	body      string
	client    *http.Client
	responses *[600]atomic.Int64 // by status
}

// attackMain runs an attack, or at once all attacks that it combines, and prints the number of responses by status.
func attackMain(name string) error {
	all := attacks()
	find := func(name string) attack {
		return all[slices.IndexFunc(all, func(a attack) bool { return a.name == name })]
	}
	a := find(name)
	kinds := []attack{a}
	if a.together != nil {
		kinds = nil
		for _, kind := range a.together {
			kinds = append(kinds, find(kind))
		}
	}
	responses := new([600]atomic.Int64)
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	attackers := make([]*attacker, len(kinds))
	for i, kind := range kinds {
		attackers[i] = &attacker{url: os.Getenv(attackURLVariable), caller: nameOf("mallory", kind.role), client: client, responses: responses}
		if kind.body != nil {
			attackers[i].body = kind.body()
		}
	}
	fmt.Println(attacking)
	errs := make(chan error, attackWidth)
	var running sync.WaitGroup
	began := time.Now()
	for worker := range attackWidth {
		running.Go(func() {
			kind, o := kinds[worker%len(kinds)], attackers[worker%len(kinds)]
			for round := 0; round < attackRounds || wholeAttack && time.Since(began) < attackTime; round++ {
				if err := kind.round(o, worker); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	running.Wait()
	counts := map[int]int64{}
	for status := range responses {
		if n := responses[status].Load(); n > 0 {
			counts[status] = n
		}
	}
	select {
	case err := <-errs:
		return err
	default:
		return json.NewEncoder(os.Stdout).Encode(counts)
	}
}

// request returns a request of the attacker without a body.
func (o *attacker) request(ctx context.Context, method, path string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, o.url+path, http.NoBody)
	if err != nil {
		panic(err) // the URL or the path of an attack is invalid
	}
	req.SetBasicAuth(o.caller, "secret")
	return req
}

// sends returns an attack that makes the call c(o, worker) in each round and counts its response. A call without a
// response counts as status 0, and is no error: the server may close the connection when it refuses a body.
func sends(c func(o *attacker, worker int) call) func(o *attacker, worker int) error {
	return func(o *attacker, worker int) error {
		status, err := c(o, worker).do(o.client, o.url, o.caller)
		if err != nil {
			status = 0
		}
		o.responses[status].Add(1)
		return nil
	}
}

// halfSent returns an attack that sends all but the last byte of each body.
func halfSent(path string, size int) func(o *attacker, worker int) error {
	return func(o *attacker, _ int) error {
		conn, err := net.Dial("tcp", strings.TrimPrefix(o.url, "http://"))
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
		req := o.request(context.Background(), "POST", path)
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
			path, req.Header.Get("Authorization"), size)
		status := make(chan int, 1)
		go func() {
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				status <- 0
				return
			}
			_ = res.Body.Close()
			status <- res.StatusCode
		}()
		_, _ = io.WriteString(conn, head) // an error means that the server has already refused the call
		_, _ = conn.Write(bytes.Repeat([]byte(" "), size-1))
		o.responses[<-status].Add(1)
		return nil
	}
}

// dialSmall opens a connection with a small receive buffer, so that the server must keep most of a response that is not
// read.
func (o *attacker) dialSmall() (net.Conn, error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(o.url, "http://"))
	if err != nil {
		return nil, err
	}
	return conn, conn.(*net.TCPConn).SetReadBuffer(4 << 10)
}

// countResponse reads one response of a connection and counts it.
func (o *attacker) countResponse(conn net.Conn, req *http.Request) {
	res, err := http.ReadResponse(bufio.NewReaderSize(conn, 1<<10), req)
	if err != nil {
		o.responses[0].Add(1)
		return
	}
	_ = res.Body.Close()
	o.responses[res.StatusCode].Add(1)
}

// sendUnread sends a request, reads nothing for a second, and then reads the response until a timeout.
func (o *attacker) sendUnread(req *http.Request, timeout time.Duration) error {
	conn, err := o.dialSmall()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := req.Write(conn); err != nil {
		return err
	}
	time.Sleep(time.Second)
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	o.countResponse(conn, req)
	return nil
}

// unread returns an attack that requests a page and reads nothing for a second.
func unread(path string) func(o *attacker, worker int) error {
	return func(o *attacker, _ int) error {
		return o.sendUnread(o.request(context.Background(), "GET", path), 500*time.Millisecond)
	}
}

// revealsUnread reveals the messages of a conversation in the console and reads nothing for a second.
func revealsUnread(o *attacker, _ int) error {
	browser := http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	login, err := browser.PostForm(o.url+"/console/login", url.Values{"name": {o.caller}, "password": {"secret"}})
	if err != nil {
		o.responses[0].Add(1)
		return nil
	}
	_ = login.Body.Close()
	req := o.request(context.Background(), "POST", "/console/messages/conversations/reveal")
	req.Header.Del("Authorization")
	form := url.Values{"user": {o.caller}, "peer": {"bob"}}.Encode()
	req.Body, req.ContentLength = io.NopCloser(strings.NewReader(form)), int64(len(form))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, cookie := range login.Cookies() {
		req.AddCookie(cookie)
	}
	return o.sendUnread(req, 2*time.Second)
}

// pipelined returns an attack without credentials that sends many requests in one write, and reads only the first
// response.
func pipelined(path string, requests int) func(o *attacker, worker int) error {
	return func(o *attacker, _ int) error {
		conn, err := o.dialSmall()
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := io.WriteString(conn, strings.Repeat("GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n", requests)); err != nil {
			o.responses[0].Add(1)
			return nil
		}
		time.Sleep(200 * time.Millisecond) // the client does not read
		o.countResponse(conn, nil)
		return nil
	}
}

// replay reads the first 4 MiB of a stream.
func replay(o *attacker, _ int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	res, err := o.client.Do(o.request(ctx, "GET", "/api/v1/stream/mallory?after=0"))
	if err != nil {
		o.responses[0].Add(1)
		return nil
	}
	defer res.Body.Close()
	o.responses[res.StatusCode].Add(1)
	_, _ = io.CopyN(io.Discard, res.Body, 4<<20) // ends with ctx at the latest
	return nil
}

// largeFrames sends the largest messages over a WebSocket and reads no response.
func largeFrames(o *attacker, _ int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := o.socket(ctx)
	if err != nil {
		return nil
	}
	defer conn.CloseNow()
	for range 50 {
		frame := fmt.Sprintf(`{"client_msg_id":"%s","to":"user:bob","data":"%s"}`, task.NewID(), o.body)
		if err := conn.Write(ctx, websocket.MessageText, []byte(frame)); err != nil {
			break
		}
	}
	return nil
}

// socket opens a WebSocket of the attacker.
func (o *attacker) socket(ctx context.Context) (*websocket.Conn, error) {
	req := o.request(ctx, "GET", "/api/v1/stream/mallory")
	conn, _, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{HTTPHeader: req.Header})
	if err != nil {
		o.responses[0].Add(1)
		return nil, err
	}
	o.responses[http.StatusSwitchingProtocols].Add(1)
	return conn, nil
}

// smallFrames sends small messages over eight WebSockets, for three seconds, as fast as the server reads them.
func smallFrames(o *attacker, _ int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			conn, err := o.socket(ctx)
			if err != nil {
				return
			}
			defer conn.CloseNow()
			go func() {
				for err := error(nil); err == nil; {
					_, _, err = conn.Read(ctx)
				}
			}()
			for err == nil {
				err = conn.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"client_msg_id":"%s","to":"user:bob","data":"m"}`, task.NewID()))
			}
		})
	}
	all.Wait()
	return nil
}

// pings sends pings over a WebSocket, for a second, as fast as the server reads them.
func pings(o *attacker, _ int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := net.Dial("tcp", strings.TrimPrefix(o.url, "http://"))
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	req := o.request(ctx, "GET", "/api/v1/stream/mallory")
	for name, value := range websocketHeaders {
		req.Header.Set(name, value)
	}
	_ = req.Write(conn)
	res, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		o.responses[0].Add(1)
		return nil
	}
	o.responses[res.StatusCode].Add(1)
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	many := bytes.Repeat([]byte("\x89\x80mask"), 1000) // empty pings
	for err == nil {
		_, err = conn.Write(many)
	}
	return nil
}
