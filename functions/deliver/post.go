package deliver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/retry"
	"github.com/sendonce/sendonce/shared/text"
)

// contentType is the type of a CloudEvent in structured mode.
const contentType = "application/cloudevents+json; charset=utf-8"

const (
	headerBytes  = 16 << 10 // limit of the response header; with a longer one the attempt fails
	excerptBytes = 4 << 10  // of the response body that are read for the excerpt
	drainBytes   = 64 << 10 // of the response body that are read in total; after a longer body the connection is not reused
	excerptRunes = 200      // maximum length of the excerpt

	idleConns        = 64
	idleConnsPerHost = 8
	idleTimeout      = 30 * time.Second

	maxRetryAfter = 24 * time.Hour

	// An attempt to a host without a public address takes a multiple of lookupStep, because the exact duration of the lookup could
	// show whether an internal name exists.
	lookupStep = 250 * time.Millisecond
)

// attempt is the result of one POST.
type attempt struct {
	at         time.Time // when the attempt started; the time in the signature of a webhook
	duration   time.Duration
	status     int           // of the response; 0 = there was none
	retryAfter time.Duration // of the response, at most 24 h; 0 = none
	response   string        // the beginning of the response's body as one line of printable text
	err        string        // for the caller that registered the URL; "" if and only if the receiver accepted the POST
	refused    bool          // the response is a 2xx whose body says that the receiver refused
	cancelled  bool          // the receiver did not fail: the ctx of post ended before a response, or nothing was posted (see unsignedAttempt and isOwnShortage)
}

// poster posts to URLs of callers. It is safe for concurrent use.
type poster struct {
	timeout      time.Duration
	transport    *http.Transport
	logNonPublic func(host string, cause error) // logs for operators why an attempt ended with errNotPublic; may be nil
}

// newPoster returns a poster. The timeout limits each attempt, including reading the response. Connecting may take at most half
// of the timeout, and so may the TLS handshake.
func newPoster(timeout time.Duration, allowed config.Networks) *poster {
	dialer := &net.Dialer{Timeout: timeout / 2, ControlContext: newGuard(allowed).control}
	return &poster{timeout: timeout, transport: &http.Transport{
		Proxy:                  nil, // a proxy would connect without the guard
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    timeout / 2,
		MaxIdleConns:           idleConns,
		MaxIdleConnsPerHost:    idleConnsPerHost,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: headerBytes,
		DisableCompression:     true,
	}}
}

// postRequest is a POST in the form that its receiver expects.
type postRequest struct {
	url, contentType string
	body             []byte
	sign             func(h http.Header, at time.Time) error // adds the signature to the header; nil = no signature
	refusal          func(body []byte) string                // returns why a 2xx response with this body is a failure, or ""; nil = every 2xx is a success
}

const errBadURL = "the URL is not valid"

// post sends one CloudEvent, signed as a webhook. Each attempt of a delivery or message must use the same id.
func (p *poster) post(ctx context.Context, url, id string, body []byte, secrets []string) attempt {
	return p.send(ctx, postRequest{url: url, contentType: contentType, body: body, sign: func(h http.Header, at time.Time) error {
		return api.SignWebhook(h, id, at, body, secrets...)
	}})
}

// send makes one POST.
func (p *poster) send(ctx context.Context, r postRequest) attempt {
	a := attempt{at: time.Now()}
	p.roundTrip(ctx, &a, r)
	a.duration = time.Since(a.at)
	return a
}

// roundTrip sends the request and stores the result in a.
func (p *poster) roundTrip(ctx context.Context, a *attempt, r postRequest) {
	limited, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(limited, http.MethodPost, r.url, bytes.NewReader(r.body))
	if err != nil {
		a.err = errBadURL
		return
	}
	req.Header.Set("User-Agent", "Sendonce")
	req.Header.Set("Content-Type", r.contentType)
	// A nil value is not sent, but allows the transport to repeat the request if an idle connection was closed. Webhook
	// receivers deduplicate by webhook-id. A chat robot cannot deduplicate: its chat group may get the text twice.
	req.Header["Idempotency-Key"] = nil
	if r.sign != nil {
		if err := r.sign(req.Header, a.at); err != nil {
			a.err = "cannot be signed: " + err.Error()
			return
		}
	}
	res, err := p.transport.RoundTrip(req) // no http.Client: it would parse redirects even if it did not follow them
	switch {
	case err == nil:
		defer res.Body.Close()
		// After a protocol switch (101) the context alone does not stop reading.
		defer context.AfterFunc(limited, func() { res.Body.Close() })()
		a.readResponse(res, r.refusal)
	case ended(ctx):
		a.cancelled, a.err = true, "interrupted before a response"
	case ended(limited):
		a.err = fmt.Sprintf("timed out after %s", p.timeout)
	case isOwnShortage(err):
		a.cancelled, a.err = true, "interrupted before a response: this instance has too many open files or too little memory"
	case notPublicAddress(err):
		if p.logNonPublic != nil {
			p.logNonPublic(req.URL.Host, err)
		}
		a.err = errNotPublic.Error()
		waitForStep(limited, a.at)
	default:
		a.err = p.describeError(err)
	}
}

// isOwnShortage reports whether err means that this process had too many open files or too little memory to connect.
func isOwnShortage(err error) bool {
	lookup, isLookup := errors.AsType[*net.DNSError](err)
	return slices.ContainsFunc([]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}, func(errno syscall.Errno) bool {
		return errors.Is(err, errno) || isLookup && strings.Contains(lookup.Err, errno.Error())
	})
}

// notPublicAddress reports whether err means that the host has no address that may be called. A failed lookup counts, too: see
// errNotPublic.
func notPublicAddress(err error) bool {
	_, lookup := errors.AsType[*net.DNSError](err)
	return lookup || errors.Is(err, errNotPublic)
}

// waitForStep waits until the time since begin is a multiple of lookupStep, or ctx ends.
func waitForStep(ctx context.Context, begin time.Time) {
	wait := time.NewTimer(lookupStep - time.Since(begin)%lookupStep)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
}

// ended reports whether ctx is done or its deadline has passed. At the deadline, a connection may time out before ctx is done.
func ended(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// readResponse stores the response. The status is valid even if the body is incomplete.
func (a *attempt) readResponse(res *http.Response, refusal func(body []byte) string) {
	a.status = res.StatusCode
	a.retryAfter = retry.After(res.Header, time.Now(), maxRetryAfter)
	switch a.status / 100 {
	case 2:
	case 3:
		a.err = fmt.Sprintf("returned %d and redirects are not followed: register the new URL", a.status)
	default:
		a.err = strings.TrimSpace(fmt.Sprintf("returned %d %s", a.status, http.StatusText(a.status)))
	}
	limit := excerptBytes
	if refusal != nil {
		limit = drainBytes // refusal needs the whole body
	}
	head, err := io.ReadAll(io.LimitReader(res.Body, int64(limit)))
	a.response = excerpt(string(head[:min(len(head), excerptBytes)]))
	if refusal != nil && a.err == "" {
		a.err = refusal(head)
		a.refused = a.err != ""
	}
	if err == nil {
		_, _ = io.CopyN(io.Discard, res.Body, int64(drainBytes-limit))
	}
}

// excerpt returns the beginning of s as one line of printable text.
func excerpt(s string) string { return text.Cut(text.Line(s), excerptRunes) }

// describeError describes, for the caller that registered the URL, why there was no response. The text contains no IP address
// and no text of the receiver.
func (p *poster) describeError(err error) string {
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the certificate is not valid: " + describeCertificateError(certificate.Err)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "TLS failed: the server does not use TLS on this port"
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	op, isOp := errors.AsType[*net.OpError](err)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		if isOp && op.Op == "dial" {
			return fmt.Sprintf("timed out after %s: no connection", p.timeout/2)
		}
		return fmt.Sprintf("timed out after %s: no TLS handshake", p.timeout/2)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the connection was closed before a response"
	}
	if isOp {
		err = op.Err
	}
	return describeProtocolError(err)
}

func describeProtocolError(err error) string {
	cause := strings.NewReplacer("net/http: ", "", "HTTP/1.x transport connection broken: ", "").Replace(err.Error())
	if reason, ok := strings.CutPrefix(cause, "tls: "); ok {
		cause = "TLS failed: " + reason
	}
	if strings.HasPrefix(cause, "readLoopPeekFailLocked") { // an internal text of net/http
		cause = "the server sent data before the request: it is not an HTTP server"
	}
	return withoutReceiverText(cause)
}

// withoutReceiverText removes the receiver's text from an error of Go's libraries, such as "x" from `bad Content-Length "x"`.
// Errors are logged, and the log must not contain the receiver's text.
func withoutReceiverText(cause string) string {
	cause, _, _ = strings.Cut(cause, `"`)
	if before, _, malformed := strings.Cut(cause, "malformed MIME header"); malformed { // cut here, too: older versions of Go append the header without quotes
		cause = before + "malformed MIME header"
	}
	return excerpt(strings.TrimRight(cause, " [:"))
}

func describeCertificateError(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "it is signed by an unknown authority"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "it is not for this host"
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return "it has expired or is not valid yet"
	}
	return withoutReceiverText(strings.TrimPrefix(err.Error(), "x509: "))
}
