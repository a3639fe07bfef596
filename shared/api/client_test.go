package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// script is a service that returns its replies one after another, and then repeats the last one.
type script struct {
	replies []reply
	calls   []call
}

type reply struct {
	status int
	body   string
	retry  string // Retry-After
	err    error  // instead of a response
	broken bool   // the connection ends within the body
}

type call struct {
	at   time.Time
	path string
	body string
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s.calls = append(s.calls, call{time.Now(), r.Method + " " + r.URL.RequestURI(), string(body)})
	next := s.replies[min(len(s.calls), len(s.replies))-1]
	if next.err != nil {
		return nil, next.err
	}
	res := &http.Response{StatusCode: next.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(next.body)), Request: r}
	if next.broken {
		res.Body = io.NopCloser(io.MultiReader(strings.NewReader(next.body), iotest.ErrReader(io.ErrUnexpectedEOF)))
	}
	if next.retry != "" {
		res.Header.Set("Retry-After", next.retry)
	}
	return res, nil
}

// paths returns the method and path of each call.
func (s *script) paths() (paths []string) {
	for _, call := range s.calls {
		paths = append(paths, call.path)
	}
	return paths
}

func (s *script) client() *Client {
	return &Client{BaseURL: "http://sendonce.test/", User: "u", Password: "p", HTTP: &http.Client{Transport: s}}
}

var (
	taskReply      = reply{status: 200, body: `{"code":200,"message":"success","data":{"task_id":"t","state":"pending"}}`}
	claimReply     = reply{status: 200, body: `{"code":200,"message":"success","data":[{"task_id":"t","claim_id":"7"}]}`}
	busyReply      = reply{status: 503, body: `{"code":503,"message":"busy","error":"server_busy"}`, retry: "3"}
	inFlightReply  = reply{status: 409, body: `{"code":409,"message":"under way","error":"idempotency_in_flight"}`, retry: "1"}
	staleReply     = reply{status: 409, body: `{"code":409,"message":"stale","error":"stale_claim"}`}
	gatewayReply   = reply{status: 502, body: `<html>bad gateway</html>`}
	resetReply     = reply{err: errors.New("connection reset by peer")}
	truncatedReply = reply{status: 200, body: `{"code":2`, broken: true}
	noConnection   = reply{err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
)

func TestCallIsRepeatedOnlyIfHarmless(t *testing.T) {
	t.Parallel()
	keyed, bare := SendRequest{PhoneNumber: "1", IdempotencyKey: "k"}, SendRequest{PhoneNumber: "1"}
	send := func(r SendRequest) func(context.Context, *Client) error {
		return func(ctx context.Context, c *Client) error { _, err := c.Send(ctx, r); return err }
	}
	sendBatch := func(rs ...SendRequest) func(context.Context, *Client) error {
		return func(ctx context.Context, c *Client) error { _, err := c.SendBatch(ctx, rs); return err }
	}
	report := func(claim ID) func(context.Context, *Client) error {
		return func(ctx context.Context, c *Client) error {
			_, err := c.Report(ctx, ReportRequest{TaskID: "t", ClaimID: claim})
			return err
		}
	}
	claim := func(ctx context.Context, c *Client) error {
		_, err := c.Claim(ctx, ClaimRequest{AppID: "a"})
		return err
	}
	read := func(ctx context.Context, c *Client) error { _, err := c.Task(ctx, "t"); return err }
	both := reply{status: 200, body: `{"code":200,"message":"success","data":{"items":[{"code":200},{"code":200}]}}`}

	for name, c := range map[string]struct {
		do      func(context.Context, *Client) error
		replies []reply
		calls   int
		fails   bool
	}{
		"send with a key after an overload":                {send(keyed), []reply{busyReply, taskReply}, 2, false},
		"send with a key while another call uses the key":  {send(keyed), []reply{inFlightReply, taskReply}, 2, false},
		"send with a key after lost responses":             {send(keyed), []reply{resetReply, truncatedReply, gatewayReply, taskReply}, 4, false},
		"send with a key is not repeated after a refusal":  {send(keyed), []reply{staleReply, taskReply}, 1, true},
		"send without a key is never repeated":             {send(bare), []reply{busyReply, taskReply}, 1, true},
		"send without a key is not repeated after a reset": {send(bare), []reply{resetReply, taskReply}, 1, true},
		"a batch is repeated if all items have a key":      {sendBatch(keyed, keyed), []reply{resetReply, both}, 2, false},
		"a batch is not repeated if an item has no key":    {sendBatch(keyed, bare), []reply{resetReply, both}, 1, true},
		"a report with a claim_id is repeated":             {report(7), []reply{busyReply, resetReply, taskReply}, 3, false},
		"a report without a claim_id is not repeated":      {report(0), []reply{resetReply, taskReply}, 1, true},
		"a claim is repeated if no connection was made":    {claim, []reply{noConnection, claimReply}, 2, false},
		"a claim is repeated after a 503 with Retry-After": {claim, []reply{busyReply, claimReply}, 2, false},
		"a claim is not repeated after a lost response":    {claim, []reply{resetReply, claimReply}, 1, true},
		"a claim is not repeated after a gateway error":    {claim, []reply{gatewayReply, claimReply}, 1, true},
		"a read is repeated":                               {read, []reply{resetReply, gatewayReply, taskReply}, 3, false},
		"a call has a limited number of tries":             {read, []reply{busyReply}, defaultTries, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &script{replies: c.replies}
				err := c.do(t.Context(), s.client())
				require.Equal(t, c.fails, err != nil, "%v", err)
				require.Len(t, s.calls, c.calls)
				for _, call := range s.calls {
					require.Equal(t, s.calls[0].body, call.body, "the body of a repeat is the same")
				}
			})
		})
	}
}

func TestOnlyResponseOfTheServiceIsSuccess(t *testing.T) {
	t.Parallel()
	send := func(c *Client, ctx context.Context) error {
		_, err := c.Send(ctx, SendRequest{IdempotencyKey: "k"})
		return err
	}
	record := func(c *Client, ctx context.Context) error {
		_, err := c.RecordSubscribe(ctx, SubscribeRecordRequest{})
		return err
	}
	withoutData := []func(*Client, context.Context) error{
		func(c *Client, ctx context.Context) error { return c.ConfirmMessage(ctx, "m") },
		func(c *Client, ctx context.Context) error { return c.MarkRead(ctx, ReadRequest{}) },
		func(c *Client, ctx context.Context) error { return c.DeleteEndpoint(ctx, "a") },
	}
	for name, c := range map[string]struct {
		reply                 reply
		withData, withoutData bool // methods with data, and methods without data, accept the reply
	}{
		"an empty object":        {reply{status: 200, body: `{}`}, false, false},
		"null":                   {reply{status: 200, body: `null`}, false, false},
		"an object of a gateway": {reply{status: 200, body: `{"status":"ok"}`}, false, false},
		"an HTML page":           {reply{status: 200, body: `<html>`}, false, false},
		"an empty body":          {reply{status: 200}, false, false},
		"no data":                {reply{status: 200, body: `{"code":200,"message":"success"}`}, false, true},
		"a code other than 202":  {reply{status: 202, body: `{"code":200,"data":{}}`}, false, false},
		"no content":             {reply{status: 204}, false, true},
		"a response with 202":    {reply{status: 202, body: `{"code":202,"data":{}}`}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				calls := func(call func(*Client, context.Context) error) (n int, err error) {
					s := &script{replies: []reply{c.reply, {status: 200, body: `{"code":200,"data":{}}`}}}
					err = call(s.client(), t.Context())
					return len(s.calls), err
				}
				n, err := calls(send)
				require.NoError(t, err)
				require.Equal(t, c.withData, n == 1, "the call is repeated unless the reply is accepted")
				n, err = calls(record)
				require.Equal(t, 1, n, "the service may have executed the call")
				require.Equal(t, c.withData, err == nil)
				require.False(t, errors.As(err, new(*Error)), "it is not a refusal")
				for _, call := range withoutData {
					n, err := calls(call)
					require.NoError(t, err)
					require.Equal(t, c.withoutData, n == 1)
				}
			})
		})
	}
}

func TestResponseHasLimitedSize(t *testing.T) {
	t.Parallel()
	_, err := readBody(&http.Response{Body: io.NopCloser(zeros{})})
	require.ErrorContains(t, err, "larger than 64 MiB")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestRedirectIsAnError(t *testing.T) {
	t.Parallel()
	var followed atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, err := strconv.Atoi(strings.Split(r.URL.Path, "/")[1])
		if err != nil {
			followed.Add(1)
			_, _ = w.Write([]byte(`{"code":200,"message":"success","data":{}}`))
			return
		}
		http.Redirect(w, r, "/new"+r.URL.Path[4:], status)
	}))
	defer server.Close()
	calls := map[string]func(*Client, context.Context) error{
		"post": func(c *Client, ctx context.Context) error {
			_, err := c.AddEndpoint(ctx, EndpointRequest{})
			return err
		},
		"get": func(c *Client, ctx context.Context) error { _, err := c.Statistics(ctx); return err },
		"stream": func(c *Client, ctx context.Context) (end error) {
			for _, end = range c.Stream(ctx, "ann", StreamRequest{}) {
			}
			return end
		},
		"socket": func(c *Client, ctx context.Context) error {
			_, err := c.Socket(ctx, "ann", StreamRequest{})
			return err
		},
	}
	clients := map[string]*http.Client{"the default client": nil, "a custom client": {}, "the client of NewClient": NewClient("", "", "").HTTP}
	for _, status := range []int{301, 302, 303, 307, 308} {
		for clientName, client := range clients {
			for method, call := range calls {
				var refused *Error
				err := call(&Client{BaseURL: fmt.Sprint(server.URL, "/", status), HTTP: client}, t.Context())
				require.ErrorAs(t, err, &refused, "%s %s %d", clientName, method, status)
				require.Equal(t, status, refused.Status)
				require.Contains(t, refused.Message, "redirects to /new/api/v1/")
			}
		}
	}
	require.Zero(t, followed.Load())
}

func TestRepeatWaitsForRetryAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{replies: []reply{busyReply, resetReply, taskReply}}
		_, err := s.client().Send(t.Context(), SendRequest{IdempotencyKey: "k"})
		require.NoError(t, err)
		first, second := s.calls[1].at.Sub(s.calls[0].at), s.calls[2].at.Sub(s.calls[1].at)
		require.GreaterOrEqual(t, first, 3*time.Second)
		require.Less(t, first, 4*time.Second)
		require.GreaterOrEqual(t, second, 2*firstPause, "without Retry-After the pauses double")
		require.Less(t, second, time.Second)
	})
}

func TestContextLimitsAllTries(t *testing.T) {
	t.Parallel()
	t.Run("no pause begins that is longer than the context", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			started := time.Now()
			s := &script{replies: []reply{busyReply}}
			_, err := s.client().Send(ctx, SendRequest{IdempotencyKey: "k"})
			var refused *Error
			require.ErrorAs(t, err, &refused, "the error is that of the last try, not that of the context")
			require.Equal(t, 503, refused.Status)
			require.Len(t, s.calls, 1)
			require.Zero(t, time.Since(started))
		})
	})
	t.Run("a pause ends with the context", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			started := time.Now()
			s := &script{replies: []reply{busyReply}}
			_, err := s.client().Send(ctx, SendRequest{IdempotencyKey: "k"})
			require.Error(t, err)
			require.Equal(t, time.Second, time.Since(started))
			require.Len(t, s.calls, 1)
		})
	})
}

func TestErrorHasEveryFieldOfTheResponse(t *testing.T) {
	t.Parallel()
	s := &script{replies: []reply{
		{status: 400, body: `{"code":400,"message":"bad","error":"invalid_request","fields":[{"field":"phone_number","message":"is required"}]}`},
		{status: 429, body: `{"code":429,"message":"slow down","error":"too_many_requests"}`, retry: "86401"},
		gatewayReply,
	}}
	c := s.client()
	c.Tries = 1
	var refused *Error
	_, err := c.Task(t.Context(), "t")
	require.ErrorAs(t, err, &refused)
	require.Equal(t, &Error{Status: 400, Code: "invalid_request", Message: "bad", Fields: []Field{{"phone_number", "is required"}}}, refused)
	require.EqualError(t, err, "400 invalid_request: bad; phone_number is required")
	_, err = c.Task(t.Context(), "t")
	require.ErrorAs(t, err, &refused)
	require.Equal(t, 24*time.Hour, refused.RetryAfter, "a longer wait is cut")
	_, err = c.Task(t.Context(), "t")
	require.EqualError(t, err, "502: Bad Gateway")
}

func TestBatchReturnsResultOfEachItem(t *testing.T) {
	t.Parallel()
	s := &script{replies: []reply{{status: 200, body: `{"code":200,"message":"success","data":{"items":[
		{"code":200,"message":"success","data":{"task_id":"t","final_content":"hi"},"replayed":true},
		{"code":409,"message":"stale","error":"stale_claim"}]}}`}}}
	sent, err := s.client().SendBatch(t.Context(), []SendRequest{{PhoneNumber: "1"}, {PhoneNumber: "2"}})
	require.NoError(t, err)
	require.Equal(t, []Result[SendResponse]{
		{Data: SendResponse{TaskID: "t", FinalContent: "hi"}, Replayed: true},
		{Err: &Error{Status: 409, Code: "stale_claim", Message: "stale"}},
	}, sent)
	_, err = s.client().ReportBatch(t.Context(), "app", []ReportRequest{{TaskID: "t", ClaimID: 7}, {TaskID: "u", ClaimID: 8}})
	require.NoError(t, err)
	require.JSONEq(t, `{"app_id":"app","items":[{"task_id":"t","claim_id":"7"},{"task_id":"u","claim_id":"8"}]}`, s.calls[1].body)
	_, err = s.client().SendBatch(t.Context(), []SendRequest{{PhoneNumber: "1"}})
	require.ErrorContains(t, err, "2 results for 1 items")
	_, err = s.client().ReportBatch(t.Context(), "app", make([]ReportRequest, 3))
	require.ErrorContains(t, err, "2 results for 3 items")
}

func TestEachMethodCallsItsPath(t *testing.T) {
	t.Parallel()
	s := &script{replies: []reply{taskReply}}
	c := s.client()
	ctx := t.Context()
	_, err := c.TaskByKey(ctx, "a:b")
	require.NoError(t, err)
	_, err = c.Cancel(ctx, "a/b")
	require.NoError(t, err)
	_, err = c.Extend(ctx, "t", ExtendRequest{AppID: "a"})
	require.NoError(t, err)
	_, err = c.Statistics(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{
		"GET /api/v1/sms/by-key/a:b", "POST /api/v1/sms/task/a%2Fb/cancel", "POST /api/v1/sms/tasks/t/extend", "GET /api/v1/admin/statistics",
	}, s.paths())
}

func TestNewKeyIsUniqueAndValid(t *testing.T) {
	t.Parallel()
	require.Regexp(t, `^[A-Za-z0-9._:-]{20,255}$`, NewKey())
	require.NotEqual(t, NewKey(), NewKey())
}
