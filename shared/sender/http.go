package sender

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/text"
)

// HTTPConfig says how a provider is called and how its answer is understood.
//
// URL, the values of Header, and Body are templates of package text/template,
// with the fields of Message as text: {{.TaskID}}, {{.ClaimID}},
// {{.PhoneNumber}}, {{.Content}}, {{.RetryCount}}. They come escaped for their
// place: percent-encoded in the URL and in a form, and in a JSON body as a string
// is between its quotes, which the template has:
//
//	{"to": "{{.PhoneNumber}}", "text": "{{.Content}}"}
type HTTPConfig struct {
	URL    string
	Method string            // "" = POST
	Header map[string]string // Content-Type decides how Body is escaped; without it Body is JSON
	Body   string

	// Outcomes says what an answer means: by its status ("404"), else by its class
	// ("5xx"), or that the request did not leave at all ("unreachable"). It goes
	// before
	//
	//	unreachable released: a provider that is away uses up no retry
	//	2xx         ok
	//	3xx         unknown; redirects are not followed
	//	401, 407    released: the credentials are at fault, not the message
	//	408         retryable
	//	429         released
	//	4xx         failed
	//	5xx         unknown; released for a 503 with Retry-After
	Outcomes map[string]Outcome

	// OKField is a field of the JSON answer, as "result.code" or "messages.0.status",
	// that must be OKValue, as it is written in the answer, for OK. Another value is
	// Failed with that value as its code; without the field the outcome is Unknown.
	OKField, OKValue string
}

const (
	unreachable = "unreachable"
	releasedFor = 30 * time.Second // when the provider does not say for how long
	mostAnswer  = 1 << 20          // bytes
)

// httpGateway calls a provider over HTTP.
type httpGateway struct {
	request requestTemplate
	rules   answerRules
	client  *http.Client
}

// NewHTTP makes a Gateway that calls a provider once for each message. What goes
// wrong before the request leaves is told from what goes wrong afterwards: only
// the latter is Unknown. The error names everything that is wrong with cfg.
func NewHTTP(cfg HTTPConfig) (Gateway, error) {
	request, badRequest := parseRequest(cfg)
	rules, badRules := parseRules(cfg)
	if err := errors.Join(badRequest, badRules); err != nil {
		return nil, err
	}
	return &httpGateway{request: request, rules: rules, client: &http.Client{
		Transport:     onceTransport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// onceTransport never repeats a request. On a connection that was used before,
// net/http repeats some by itself, and a server that closes it just then makes
// others unknown; so each message has its own. With HTTP/1 the trace tells
// reliably whether anything was written.
func onceTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableKeepAlives = true
	t.ForceAttemptHTTP2 = false
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	return t
}

// Send makes one request.
func (g *httpGateway) Send(ctx context.Context, m Message) Result {
	var left atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { left.Store(true) },
	})
	req, err := g.request.of(ctx, m)
	if err != nil {
		return Result{Outcome: Failed, Code: "template", Message: err.Error()}
	}
	res, err := g.client.Do(req)
	if err != nil {
		return g.broken(err, left.Load())
	}
	defer res.Body.Close()
	// What the status alone decides does not need the whole body.
	body, err := io.ReadAll(io.LimitReader(res.Body, mostAnswer))
	return g.rules.judge(res, body, err)
}

// broken is what a call without an answer means.
func (g *httpGateway) broken(err error, left bool) Result {
	// The URL in a url.Error may hold a number and a token.
	var withURL *url.Error
	if errors.As(err, &withURL) {
		err = withURL.Err
	}
	if left {
		return Result{Message: "no answer: " + err.Error()}
	}
	return released(Result{Outcome: g.rules.outcomes[unreachable], Code: unreachable, Message: err.Error()}, 0)
}

// released gives a Released result a time to stay away.
func released(r Result, asked time.Duration) Result {
	if r.Outcome == Released {
		r.RetryAfter = asked
		if asked <= 0 {
			r.RetryAfter = releasedFor
		}
	}
	return r
}

// excerpt is the beginning of an answer, for people.
func excerpt(body []byte) string {
	return strings.TrimSpace(text.Cut(text.Printable(string(body[:min(len(body), 4*mostMessage)]), ' '), mostMessage))
}
