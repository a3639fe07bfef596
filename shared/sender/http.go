package sender

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
)

const maxResponse = 1 << 20 // bytes

// httpGateway calls a provider over HTTP.
type httpGateway struct {
	request requestTemplate
	rules   responseRules
	client  *http.Client
}

// NewHTTP makes a Gateway that calls a provider once for each message. If there is no response, the outcome is Unknown
// if a part of the request may have been sent, else the outcome of "unreachable" in HTTPConfig.Outcomes. The error
// names everything that is wrong with cfg.
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

// newTransport returns a transport that never repeats a request. It opens a connection for each message: on a
// kept-alive connection that the server closes, net/http repeats some requests by itself, and the outcome of the others
// is unknown. It uses HTTP/1, with which the trace in Send reports reliably whether a byte may have been written.
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
	// rules.result gets the error of reading the body, because the body does not matter if the status alone decides.
	body, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	return g.rules.result(res, body, err)
}

// noResponse makes the result of a request without a response.
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
