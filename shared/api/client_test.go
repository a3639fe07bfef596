package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// script is a service that returns these responses one after the other, and
// then the last one again and again.
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
	a := s.replies[min(len(s.calls), len(s.replies))-1]
	if a.err != nil {
		return nil, a.err
	}
	res := &http.Response{StatusCode: a.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(a.body)), Request: r}
	if a.broken {
		res.Body = io.NopCloser(io.MultiReader(strings.NewReader(a.body), failing{}))
	}
	if a.retry != "" {
		res.Header.Set("Retry-After", a.retry)
	}
	return res, nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func (s *script) client() *Client {
	return &Client{BaseURL: "http://sendonce.test/", User: "u", Password: "p", HTTP: &http.Client{Transport: s}}
}

var (
	taken   = reply{status: 200, body: `{"code":200,"message":"success","data":{"task_id":"t","state":"pending"}}`}
	claimed = reply{status: 200, body: `{"code":200,"message":"success","data":[{"task_id":"t","claim_id":"7"}]}`}
	busy    = reply{status: 503, body: `{"code":503,"message":"busy","error":"server_busy"}`, retry: "3"}
	flight  = reply{status: 409, body: `{"code":409,"message":"under way","error":"idempotency_in_flight"}`, retry: "1"}
	stale   = reply{status: 409, body: `{"code":409,"message":"stale","error":"stale_claim"}`}
	gateway = reply{status: 502, body: `<html>bad gateway</html>`}
	reset   = reply{err: errors.New("connection reset by peer")}
	cut     = reply{status: 200, body: `{"code":2`, broken: true}
	unheard = reply{err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
)

func TestACallIsRepeatedOnlyWhereItCannotDoAThingTwice(t *testing.T) {
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
	empty := reply{status: 200, body: `{"code":200,"message":"success","data":{"items":[]}}`}

	for name, c := range map[string]struct {
		do      func(context.Context, *Client) error
		replies []reply
		calls   int
		fails   bool
	}{
		"send with a key after an overload":              {send(keyed), []reply{busy, taken}, 2, false},
		"send with a key while its first call is on":     {send(keyed), []reply{flight, taken}, 2, false},
		"send with a key after a lost connection":        {send(keyed), []reply{reset, cut, gateway, taken}, 4, false},
		"send with a key is not repeated when refused":   {send(keyed), []reply{stale, taken}, 1, true},
		"send without a key is never repeated":           {send(bare), []reply{busy, taken}, 1, true},
		"send without a key though nothing was heard":    {send(bare), []reply{reset, taken}, 1, true},
		"a batch is repeated when all have a key":        {sendBatch(keyed, keyed), []reply{reset, empty}, 2, false},
		"a batch is not repeated when one has none":      {sendBatch(keyed, bare), []reply{reset, empty}, 1, true},
		"a report of a claim is repeated":                {report(7), []reply{busy, reset, taken}, 3, false},
		"a report without its claim is not":              {report(0), []reply{reset, taken}, 1, true},
		"a claim is repeated when no connection came":    {claim, []reply{unheard, claimed}, 2, false},
		"a claim is repeated when the service says when": {claim, []reply{busy, claimed}, 2, false},
		"a claim is not repeated after a lost response":  {claim, []reply{reset, claimed}, 1, true},
		"a claim is not repeated after a gateway's word": {claim, []reply{gateway, claimed}, 1, true},
		"reading is repeated":                            {read, []reply{reset, gateway, taken}, 3, false},
		"an outage ends the tries":                       {read, []reply{busy}, defaultTries, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &script{replies: c.replies}
				err := c.do(t.Context(), s.client())
				require.Equal(t, c.fails, err != nil, "%v", err)
				require.Len(t, s.calls, c.calls)
				for _, again := range s.calls {
					require.Equal(t, s.calls[0].body, again.body, "a repeat says the same")
				}
			})
		})
	}
}

func TestARepeatWaitsAsLongAsTheServiceSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{replies: []reply{busy, reset, taken}}
		_, err := s.client().Send(t.Context(), SendRequest{IdempotencyKey: "k"})
		require.NoError(t, err)
		first, second := s.calls[1].at.Sub(s.calls[0].at), s.calls[2].at.Sub(s.calls[1].at)
		require.GreaterOrEqual(t, first, 3*time.Second)
		require.Less(t, first, 4*time.Second)
		require.GreaterOrEqual(t, second, 2*firstPause, "without its word the pauses double")
		require.Less(t, second, time.Second)
	})
}

func TestTheContextBoundsAllTries(t *testing.T) {
	t.Parallel()
	t.Run("a wait that would outlast it is not begun", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			begun := time.Now()
			s := &script{replies: []reply{busy}}
			_, err := s.client().Send(ctx, SendRequest{IdempotencyKey: "k"})
			var refused *Error
			require.ErrorAs(t, err, &refused, "the service's word says more than a deadline")
			require.Equal(t, 503, refused.Status)
			require.Len(t, s.calls, 1)
			require.Zero(t, time.Since(begun))
		})
	})
	t.Run("a wait ends with it", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			begun := time.Now()
			s := &script{replies: []reply{busy}}
			_, err := s.client().Send(ctx, SendRequest{IdempotencyKey: "k"})
			require.Error(t, err)
			require.Equal(t, time.Second, time.Since(begun))
			require.Len(t, s.calls, 1)
		})
	})
}

func TestARefusalTellsAllThatTheServiceSaid(t *testing.T) {
	t.Parallel()
	s := &script{replies: []reply{
		{status: 400, body: `{"code":400,"message":"bad","error":"invalid_request","fields":[{"field":"phone_number","message":"is required"}]}`},
		{status: 429, body: `{"code":429,"message":"slow down","error":"too_many_requests"}`, retry: "9"},
		gateway,
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
	require.Equal(t, 9*time.Second, refused.RetryAfter)
	_, err = c.Task(t.Context(), "t")
	require.EqualError(t, err, "502: Bad Gateway")
}

func TestRetryAfterIsReadInBothForms(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "30": 30 * time.Second, "86401": 24 * time.Hour, "99999999999999999999999": 24 * time.Hour, "-5": 0, "soon": 0,
		"Fri, 01 Mar 9999 12:00:00 GMT": 24 * time.Hour, "Sun, 01 Mar 2020 11:59:59 GMT": 0,
	} {
		require.Equal(t, want, retryAfter(value), value)
	}
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
	_, err = s.client().ReportBatch(t.Context(), "app", []ReportRequest{{TaskID: "t", ClaimID: 7}})
	require.NoError(t, err)
	require.JSONEq(t, `{"app_id":"app","items":[{"task_id":"t","claim_id":"7"}]}`, s.calls[1].body)
}

func TestEachMethodCallsItsPath(t *testing.T) {
	t.Parallel()
	s := &script{replies: []reply{taken}}
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
	var paths []string
	for _, made := range s.calls {
		paths = append(paths, made.path)
	}
	require.Equal(t, []string{
		"GET /api/v1/sms/by-key/a:b", "POST /api/v1/sms/task/a%2Fb/cancel", "POST /api/v1/sms/tasks/t/extend", "GET /api/v1/admin/statistics",
	}, paths)
}

func TestAKeyIsFreshAndWhatTheServiceTakes(t *testing.T) {
	t.Parallel()
	require.Regexp(t, `^[A-Za-z0-9._:-]{20,255}$`, NewKey())
	require.NotEqual(t, NewKey(), NewKey())
}
