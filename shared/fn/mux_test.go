package fn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	waitAtMost = 10 * time.Second
	tick       = 5 * time.Millisecond
)

type greeting struct {
	Name  string `json:"name"`
	Times *int   `json:"times"`
	Loud  bool   `json:"loud"`
}

func (g *greeting) Validate() []task.Field {
	if g.Name == "" {
		return []task.Field{{Name: "name", Message: "is required"}}
	}
	return nil
}

func greet(_ context.Context, c *Call, g greeting) (any, error) {
	times := 1
	if g.Times != nil {
		times = *g.Times
	}
	return map[string]any{"text": fmt.Sprintf("%s<&>%s", g.Name, c.PathValue("id")), "times": times, "loud": g.Loud}, nil
}

func greeter() Function {
	return HTTP("greeter", func(*Env, struct{}) Routes {
		return Routes{
			"POST /api/v1/greet":        JSON(Submitter, greet),
			"POST /api/v1/greet/small":  JSON(Submitter, greet).MaxBody(32),
			"GET /api/v1/greet/{id}":    Parameters(Submitter, greet),
			"DELETE /api/v1/greet/{id}": Parameters(Submitter, greet),
			"GET /api/v1/both":          Parameters(Sender, greet),
			"POST /api/v1/both":         Parameters(Sender, greet),
			"POST /api/v1/raw": Raw(Submitter, func(_ context.Context, c *Call) (any, error) {
				c.Header().Set("X-Extra", "1")
				c.Status(http.StatusAccepted)
				return string(c.Body), nil
			}),
			"PUT /api/v1/empty": Raw(Admin, func(_ context.Context, c *Call) (any, error) {
				c.Status(http.StatusNoContent)
				return nil, nil
			}),
		}
	})
}

// greet makes a valid call of POST /api/v1/greet.
func (h *testServer) greet(options ...func(*http.Request)) reply {
	return h.call("POST", "/api/v1/greet", `{"name":"a"}`, options...)
}

// failing has the route POST /api/v1/fail, whose handler returns the result of err.
func failing(err func(context.Context) error) Function {
	return HTTP("failing", func(*Env, struct{}) Routes {
		return Routes{"POST /api/v1/fail": Raw(Submitter, func(ctx context.Context, _ *Call) (any, error) { return nil, err(ctx) })}
	})
}

func TestResponseIsAnEnvelope(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	r := h.call("POST", "/api/v1/greet", `{"name":"张三","times":3}`)
	require.Equal(t, 200, r.status)
	require.Equal(t, `{"code":200,"message":"success","data":{"loud":false,"text":"张三<&>","times":3}}`+"\n", r.body, "text stays readable")
	require.Equal(t, "application/json; charset=utf-8", r.header.Get("Content-Type"))
	require.Equal(t, "no-store", r.header.Get("Cache-Control"))
	require.Equal(t, fmt.Sprint(len(r.body)), r.header.Get("Content-Length"))

	r = h.call("GET", "/api/v1/greet/7?name=a&loud=1", "")
	require.Equal(t, map[string]any{"text": "a<&>7", "times": 1.0, "loud": true}, r.Data)
	r = h.call("DELETE", "/api/v1/greet/7?name=a", "")
	require.Equal(t, 200, r.status)
	r = h.call("POST", "/api/v1/raw", "not JSON\x00")
	require.Equal(t, 202, r.status)
	require.Equal(t, 202, r.Code)
	require.Equal(t, "not JSON\x00", r.Data)
	require.Equal(t, "1", r.header.Get("X-Extra"))
	r = h.call("PUT", "/api/v1/empty", "")
	require.Equal(t, 204, r.status)
	require.Empty(t, r.body)
}

func TestErrorNamesEveryBadField(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/api/v1/greet", `{"times":"x","shout":1}`, `[{times must be an integer} {shout is not a known field} {name is required}]`},
		{"POST", "/api/v1/greet?name=x", `{"name":"a"}`, `[{name is not a known parameter}]`},
		{"GET", "/api/v1/greet/7?times=x&shout=1&loud=yes", ``, `[{loud must be true, false, 1 or 0} {shout is not a known parameter} {times must be an integer} {name is required}]`},
		{"GET", "/api/v1/greet/7?name=a&name=b&times=9223372036854775808", ``, `[{name is given more than once} {times must be an integer between -9223372036854775808 and 9223372036854775807}]`},
		{"GET", "/api/v1/greet/7?name=%zz", ``, `[{query is not a well-formed query string: invalid URL escape "%zz"}]`},
		{"GET", "/api/v1/greet/7?name=a%00b", ``, `[{name must not contain NUL or unpaired surrogates}]`},
		{"GET", "/api/v1/greet/7?name=%ff", ``, `[{name must be valid UTF-8}]`},
		{"GET", "/api/v1/greet/7?name=a", `{}`, `[{body must be empty on GET}]`},
	} {
		r := h.call(c.method, c.path, c.body)
		require.Equal(t, 400, r.status, c)
		require.Equal(t, 400, r.Code)
		require.Equal(t, "invalid_request", r.Error)
		require.Equal(t, c.want, fmt.Sprint(r.Fields), c)
	}
}

func TestGETAndPOSTShareAHandler(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	want := map[string]any{"text": "a<&>", "times": 2.0, "loud": true}
	require.Equal(t, want, h.call("GET", "/api/v1/both?name=a&times=2&loud=true", "").Data)
	require.Equal(t, want, h.call("POST", "/api/v1/both?name=a&times=2&loud=true", "").Data)
	require.Equal(t, want, h.call("POST", "/api/v1/both", `{"name":"a","times":2,"loud":true}`).Data)
	require.Equal(t, want, h.call("POST", "/api/v1/both?name=b&loud=1", `{"name":"a","times":2}`).Data, "the body overrides the query")
}

func TestUnknownPathIs404AndWrongMethod405(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	for _, path := range []string{"/", "/api", "/api/v1/greet/", "/api/v1//greet", "/api/v1/x/../greet", "/api/v1/greet/7/8", "/api/v1/greet/%2e%2e", "/healthz/"} {
		r := h.call("POST", path, `{"name":"a"}`)
		require.Equal(t, 404, r.status, path)
		require.Equal(t, "not_found", r.Error)
	}
	for _, c := range []struct{ method, path, allow string }{
		{"GET", "/api/v1/greet", "POST"},
		{"HEAD", "/api/v1/both", "GET, POST"},
		{"OPTIONS", "/api/v1/both", "GET, POST"},
		{"POST", "/api/v1/greet/7", "DELETE, GET"},
		{"PATCH", "/api/v1/empty", "PUT"},
	} {
		r := h.call(c.method, c.path, "")
		require.Equal(t, 405, r.status, c)
		require.Equal(t, c.allow, r.header.Get("Allow"))
	}
	require.Equal(t, "method_not_allowed", h.call("GET", "/api/v1/raw", "").Error)
}

func TestBodyMustBeJSONWithinLimit(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	good, long := `{"name":"a"}`, `{"name":"`+strings.Repeat("a", 64<<10)+`"}`
	chunked := func(r *http.Request) { r.ContentLength = -1; r.Body = io.NopCloser(strings.NewReader(long)) }
	for _, c := range []struct {
		name, path, body string
		option           func(*http.Request)
		status           int
		code             string
	}{
		{"a charset of utf-8", "/api/v1/greet", good, header("Content-Type", "Application/JSON; charset=UTF-8"), 200, ""},
		{"another charset", "/api/v1/greet", good, header("Content-Type", "application/json; charset=gbk"), 415, "unsupported_media_type"},
		{"a form", "/api/v1/greet", good, header("Content-Type", "application/x-www-form-urlencoded"), 415, "unsupported_media_type"},
		{"no type", "/api/v1/greet", good, header("Content-Type", ""), 415, "unsupported_media_type"},
		{"a CloudEvent's type", "/api/v1/greet", good, header("Content-Type", "application/cloudevents+json"), 415, "unsupported_media_type"},
		{"gzip", "/api/v1/greet", good, header("Content-Encoding", "gzip"), 415, "unsupported_media_type"},
		{"identity", "/api/v1/greet", good, header("Content-Encoding", "identity"), 200, ""},
		{"too long", "/api/v1/greet", long, header(), 413, "too_large"},
		{"too long and of unknown length", "/api/v1/greet", good, chunked, 413, "too_large"},
		{"too long for a smaller limit", "/api/v1/greet/small", `{"name":"` + strings.Repeat("a", 32) + `"}`, header(), 413, "too_large"},
		{"just as long as allowed", "/api/v1/greet/small", `{"name":"` + strings.Repeat("a", 21) + `"}`, header(), 200, ""},
	} {
		r := h.call("POST", c.path, c.body, c.option)
		require.Equal(t, c.status, r.status, c.name)
		require.Equal(t, c.code, r.Error, c.name)
	}
}

func TestErrorsHaveStatusAndNoInternals(t *testing.T) {
	t.Parallel()
	wrapped := func(code string) error {
		return fmt.Errorf("store: %w", &task.Error{Code: code, Message: "the message", Fields: []task.Field{{Name: "f", Message: "m"}}})
	}
	for _, c := range []struct {
		err        error
		status     int
		code       string
		retryAfter string
	}{
		{wrapped("invalid_request"), 400, "invalid_request", ""},
		{wrapped("content_blocked"), 400, "content_blocked", ""},
		{wrapped("forbidden"), 403, "forbidden", ""},
		{wrapped("not_found"), 404, "not_found", ""},
		{wrapped("no_default_content"), 404, "no_default_content", ""},
		{wrapped("idempotency_in_flight"), 409, "idempotency_in_flight", ""},
		{wrapped("stale_claim"), 409, "stale_claim", ""},
		{wrapped("default_already_sent"), 409, "default_already_sent", ""},
		{wrapped("default_exists"), 409, "default_exists", ""},
		{wrapped("conflict"), 409, "conflict", ""},
		{wrapped("idempotency_key_reused"), 422, "idempotency_key_reused", ""},
		{wrapped("server_busy"), 503, "server_busy", "1"},
		{&task.Error{Code: "idempotency_in_flight", Message: "m", RetryAfter: 250 * time.Millisecond}, 409, "idempotency_in_flight", "1"},
		{&task.Error{Code: "server_busy", Message: "m", RetryAfter: 2100 * time.Millisecond}, 503, "server_busy", "3"},
		{fmt.Errorf("claim: %w", context.DeadlineExceeded), 503, "server_busy", "1"},
		{fmt.Errorf("claim: %w", &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("refused")}), 503, "server_busy", "1"},
		{errors.New("duplicate key (phone_number)=(13800138000)"), 500, "internal", ""},
		{wrapped("no_such_code"), 500, "internal", ""},
	} {
		h := startServer(t, nil, failing(func(context.Context) error { return c.err }))
		r := h.call("POST", "/api/v1/fail", "")
		require.Equal(t, c.status, r.status, c.err)
		require.Equal(t, c.status, r.Code)
		require.Equal(t, c.code, r.Error)
		require.Equal(t, c.retryAfter, r.header.Get("Retry-After"), c.err)
		line := h.callLines(1)[0]
		require.Equal(t, c.code, line["error"])
		require.Equal(t, c.err.Error(), line["cause"], "the log has the whole error")
		require.Equal(t, map[bool]string{true: "ERROR", false: "INFO"}[c.status >= 500], line["level"])
		if c.status == 500 {
			require.Equal(t, "internal error, request id "+r.header.Get("X-Request-Id"), r.Message)
			require.Empty(t, r.Fields)
		}
	}
}

func TestUnencodableResponseIs500(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, HTTP("bad", func(*Env, struct{}) Routes {
		return Routes{"GET /bad": Raw(Admin, func(context.Context, *Call) (any, error) { return func() {}, nil })}
	}))
	r := h.call("GET", "/bad", "")
	require.Equal(t, 500, r.status)
	require.Contains(t, h.callLines(1)[0]["cause"], "encode the response")
}

func TestHandlerTimeoutIs503(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, HTTP("slow", func(*Env, struct{}) Routes {
		return Routes{"POST /slow": Raw(Submitter, func(ctx context.Context, _ *Call) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}).Timeout(20 * time.Millisecond)}
	}))
	require.Equal(t, 503, h.call("POST", "/slow", "").status)
}

func TestPanicIs500AndOneLogLine(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, failing(func(context.Context) error { panic("phone 13800138000") }))
	r := h.call("POST", "/api/v1/fail", "")
	require.Equal(t, 500, r.status)
	require.NotContains(t, r.body, "138")
	line := h.callLines(1)[0]
	require.Equal(t, "panic: phone 13800138000", line["cause"])
	require.Contains(t, line["stack"], "mux_test.go")

	t.Run("http.ErrAbortHandler cuts the connection", func(t *testing.T) {
		t.Parallel()
		h := startServer(t, nil, failing(func(context.Context) error { panic(http.ErrAbortHandler) }))
		_, err := http.DefaultClient.Do(h.request("POST", "/api/v1/fail", ""))
		require.Error(t, err)
		require.Equal(t, "aborted", h.callLines(1)[0]["error"])
		require.Eventually(t, func() bool { return h.env.limiter.countInFlight() == 0 }, waitAtMost, tick)
	})
}

func TestCallLogsOneLineWithoutPath(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, HTTP("logger", func(*Env, struct{}) Routes {
		return Routes{"GET /api/v1/sms/by-phone/{phone}": Parameters(Submitter, func(_ context.Context, c *Call, _ struct {
			Phone string `json:"phone"`
		}) (any, error) {
			c.Log("task_id", "T1")
			return nil, nil
		})}
	}))
	h.call("GET", "/api/v1/sms/by-phone/13800138000?phone=13800138000", "", as("submitter", "token"), header("X-Request-Id", "abc-1"))
	line := h.callLines(1)[0]
	require.Positive(t, line["ms"])
	require.Positive(t, line["bytes"])
	for name, want := range map[string]any{
		"level": "INFO", "request_id": "abc-1", "function": "logger", "method": "GET", "route": "GET /api/v1/sms/by-phone/{phone}",
		"status": 200.0, "caller": "submitter", "source_ip": "127.0.0.1", "task_id": "T1",
	} {
		require.Equal(t, want, line[name], name)
	}
	require.NotContains(t, h.log.String(), "13800138000")
	h.setCallers(func(ctx context.Context, name string, forList bool) (callers.Caller, error) {
		caller, err := knownCallers(ctx, "submitter", forList)
		caller.Name = name
		return caller, err
	})
	h.call("GET", "/13800138000", "", header("X-Request-Id", "sms-13800138000"), as("13800138000", "token"))
	h.call("GET", "/api/v1/sms/by-phone/1?phone=1", "", header("X-Request-Id", "sms-13800138000"), as("13800138000", "token"))
	require.Equal(t, "138****8000", h.callLines(3)[2]["caller"])
	require.Equal(t, "none", h.callLines(3)[1]["route"])
	h.call("M13800138000", "/api/v1/sms/by-phone/1", "", as("submitter", "token"))
	require.Equal(t, "M138****8000", h.callLines(4)[3]["method"])
	require.NotContains(t, h.log.String(), "13800138000")
}

func TestRequestIDIsValidated(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	for given, kept := range map[string]bool{
		"a.B_9-" + strings.Repeat("x", 44): true, strings.Repeat("x", 51): false, "": false, "a b": false, "é": false, `"`: false,
		"13900139000": false, "sms-13900139000.1": false, "+8613900139000": false, "order-123456": true,
		"12345678-1234-7234-8234-123456789abc": true, "00f067aa12345678": true, "4bf92f3577b34da6a3ce929123456789": true,
		"13900139000abcde": false, "abcd13900139000e": false, "4bf92f3577b34da6a13900139000cdef": false,
		"1390013900000001": false, "13900139000-abcde": false, "139-0013-9000": false, "sms_139.0013.9000": false, "order-2026-11-0001": false, "order-2026-11-23": true,
	} {
		got := h.call("PUT", "/api/v1/empty", "", header("X-Request-Id", given)).header.Get("X-Request-Id")
		require.Equal(t, kept, got == given, given)
		require.True(t, task.ValidName(got, 50))
	}
}

func TestBadRoutesPreventStart(t *testing.T) {
	t.Parallel()
	env := newTestServer(t, nil).env
	with := func(name, pattern string) Function {
		return HTTP(name, func(*Env, struct{}) Routes { return Routes{pattern: Parameters(Admin, greet)} })
	}
	for want, functions := range map[string][]Function{
		`function two: pattern "GET /a/b"`:                       {with("one", "GET /a/b"), with("two", "GET /a/b")},
		`function two: pattern "GET /a/{x}/c"`:                   {with("one", "GET /a/b/{y}"), with("two", "GET /a/{x}/c")},
		`pattern "/a" is not a method and a full path`:           {with("one", "/a")},
		`pattern "HEAD /a" is not a method`:                      {with("one", "HEAD /a")},
		`pattern "GET example.com/a" is not a method and a full`: {with("one", "GET example.com/a")},
		`two functions are named one`:                            {with("one", "GET /a"), with("one", "GET /b")},
	} {
		_, err := Handler(env, functions...)
		require.ErrorContains(t, err, want)
	}
	_, err := Handler(env, HTTP("long", func(*Env, struct{}) Routes {
		return Routes{"GET /a": Parameters(Admin, greet).Timeout(time.Minute)}
	}))
	require.ErrorContains(t, err, "timeout 1m0s is not between 0 and 50s")
}
