package sender

import (
	"cmp"
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

// HTTPConfig configures the request to a provider and what its responses mean.
//
// URL, the values of Header, and Body are templates of package text/template with the fields of Message:
// {{.TaskID}}, {{.ClaimID}}, {{.PhoneNumber}}, {{.Content}}, {{.RetryCount}}. The values are escaped:
// percent-encoded in the URL and in a form, and for a JSON string in a JSON body, where the template has the
// quotes:
//
//	{"to": "{{.PhoneNumber}}", "text": "{{.Content}}"}
type HTTPConfig struct {
	URL    string
	Method string            // "" = POST
	Header map[string]string // Content-Type decides how Body is escaped; without it Body is JSON
	Body   string

	// Outcomes maps a status ("404"), a class of them ("5xx"), or "unreachable", if no request could be sent,
	// to an outcome. A status is more specific than its class. Without an entry, the outcome is
	//
	//	unreachable released: no retry is used while the provider is unavailable
	//	2xx         ok
	//	3xx         unknown; redirects are not followed
	//	401, 407    released: the credentials are wrong, not the message
	//	408         retryable
	//	429         released
	//	4xx         failed
	//	5xx         unknown; released for a 503 with Retry-After
	Outcomes map[string]Outcome

	// OKField is the path of a field of the JSON response, such as "result.code" or "messages.0.status". The
	// outcome is OK only if the field's text is OKValue. Any other value is Failed with that value as Code;
	// without the field the outcome is Unknown.
	OKField, OKValue string
}

const (
	unreachable       = "unreachable"
	defaultRetryAfter = 30 * time.Second // if the response has no Retry-After
	maxResponse       = 1 << 20          // bytes
)

// httpGateway calls a provider over HTTP.
type httpGateway struct {
	request requestTemplate
	rules   responseRules
	client  *http.Client
}

// NewHTTP makes a Gateway that calls a provider once for each message. A request without a response is Unknown
// if a part of it was sent, else it has the outcome of "unreachable". The error names everything that is wrong
// with cfg.
func NewHTTP(cfg HTTPConfig) (Gateway, error) {
	request, badRequest := parseRequest(cfg)
	rules, badRules := parseRules(cfg)
	if err := errors.Join(badRequest, badRules); err != nil {
		return nil, err
	}
	return &httpGateway{request: request, rules: rules, client: &http.Client{
		Transport:     newTransport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// newTransport returns a transport that never repeats a request. Each message has its own connection, because on
// a kept-alive one net/http repeats some requests by itself, and the outcome of others is unknown if the server
// closes it. With HTTP/1 the trace reports reliably whether a byte was written.
func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableKeepAlives = true
	t.ForceAttemptHTTP2 = false
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	return t
}

// Send makes one request.
func (g *httpGateway) Send(ctx context.Context, m Message) Result {
	var written atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { written.Store(true) },
	})
	req, err := g.request.newRequest(ctx, m)
	if err != nil {
		return Result{Outcome: Failed, Code: "template", Message: err.Error()}
	}
	res, err := g.client.Do(req)
	if err != nil {
		return g.noResponse(err, written.Load())
	}
	defer res.Body.Close()
	// If the status alone decides, an incomplete body is no error.
	body, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	return g.rules.result(res, body, err)
}

// noResponse is the result of a request without a response.
func (g *httpGateway) noResponse(err error, written bool) Result {
	// The URL in a url.Error may contain a phone number and a token.
	var withURL *url.Error
	if errors.As(err, &withURL) {
		err = withURL.Err
	}
	if written {
		return Result{Message: "no response: " + err.Error()}
	}
	return withRetryAfter(Result{Outcome: g.rules.outcomes[unreachable], Code: unreachable, Message: err.Error()}, 0)
}

// withRetryAfter sets RetryAfter if the outcome is Released.
func withRetryAfter(r Result, after time.Duration) Result {
	if r.Outcome == Released {
		r.RetryAfter = cmp.Or(after, defaultRetryAfter)
	}
	return r
}

// excerpt returns the beginning of a response, for people.
func excerpt(body []byte) string {
	return strings.TrimSpace(text.Cut(text.Printable(string(body[:min(len(body), 4*maxMessage)]), ' '), maxMessage))
}
