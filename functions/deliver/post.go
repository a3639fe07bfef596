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
	"strings"
	"syscall"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/retry"
	"github.com/sendonce/sendonce/shared/text"
)

// contentType is that of a CloudEvent in its structured mode.
const contentType = "application/cloudevents+json; charset=utf-8"

const (
	headerBytes  = 16 << 10 // an answer's header may have; more is a failure
	excerptBytes = 4 << 10  // of an answer's body are looked at
	drainBytes   = 64 << 10 // of it are read, as only a connection read to the end can be used again
	excerptRunes = 200

	idleConns        = 64
	idleConnsPerHost = 8
	idleTimeout      = 30 * time.Second

	longestRetryAfter = 24 * time.Hour

	// lookupStep hides how long a lookup took that gave no public address: a name
	// that exists in our network is answered sooner than one that does not.
	lookupStep = 250 * time.Millisecond
)

// attempt is one try to deliver and what came of it.
type attempt struct {
	at         time.Time // as signed
	duration   time.Duration
	status     int           // of the answer; 0 = there was none
	retryAfter time.Duration // what the receiver asks for, at most 24 h; 0 = nothing
	response   string        // the beginning of the answer's body, printable
	err        string        // for whoever registered the URL; "" exactly when status is 2xx
	cancelled  bool          // the caller's context ended first, or it could not be signed: nothing is known
}

// poster POSTs to URLs that strangers chose. Its method post may be called by
// many goroutines at once.
type poster struct {
	timeout   time.Duration
	transport *http.Transport
	hidden    func(host string, cause error) // what errNotPublic does not say, for an operator; nil = nobody reads it
}

// newPoster gives each try the timeout for all of it, the reading of the answer
// included, and half of it for each of connecting and the TLS handshake.
func newPoster(timeout time.Duration, allowed config.Networks) *poster {
	dialer := &net.Dialer{Timeout: timeout / 2, ControlContext: newGuard(allowed).control}
	return &poster{timeout: timeout, transport: &http.Transport{
		Proxy:                  nil, // a proxy would dial for us, past the guard
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    timeout / 2,
		MaxIdleConns:           idleConns,
		MaxIdleConnsPerHost:    idleConnsPerHost,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: headerBytes,
		DisableCompression:     true,
	}}
}

// post makes one try. The id must be the same in each try of a delivery.
func (p *poster) post(ctx context.Context, url, id string, body []byte, secrets []string) attempt {
	a := attempt{at: time.Now()}
	p.exchange(ctx, &a, url, id, body, secrets)
	a.duration = time.Since(a.at)
	return a
}

func (p *poster) exchange(ctx context.Context, a *attempt, url, id string, body []byte, secrets []string) {
	limited, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(limited, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		a.err = "the URL is not valid"
		return
	}
	req.Header.Set("User-Agent", "Sendonce")
	req.Header.Set("Content-Type", contentType)
	// Never on the wire: it has the transport repeat the request when a kept
	// connection turns out to be closed. The webhook-id makes that harmless.
	req.Header["Idempotency-Key"] = nil
	if err := api.SignWebhook(req.Header, id, a.at, body, secrets...); err != nil {
		a.err = "cannot be signed: " + err.Error()
		return
	}
	res, err := p.transport.RoundTrip(req) // not a Client, which reads redirects even if it does not follow them
	switch {
	case err == nil:
		defer res.Body.Close()
		// Once the protocol is switched (101) no context ends the reading.
		defer context.AfterFunc(limited, func() { res.Body.Close() })()
		a.answered(res)
	case ended(ctx):
		a.cancelled, a.err = true, "interrupted before there was an answer"
	case ended(limited):
		a.err = fmt.Sprintf("timed out after %s", p.timeout)
	case notPublicAddress(err):
		if p.hidden != nil {
			p.hidden(req.URL.Host, err)
		}
		a.err = errNotPublic.Error()
		untilStep(limited, a.at)
	default:
		a.err = p.fault(err)
	}
}

// notPublicAddress tells whether no address was found that may be called, for
// whatever reason.
func notPublicAddress(err error) bool {
	_, lookup := errors.AsType[*net.DNSError](err)
	return lookup || errors.Is(err, errNotPublic)
}

// untilStep waits until the time since begin is a multiple of lookupStep.
func untilStep(ctx context.Context, begin time.Time) {
	wait := time.NewTimer(lookupStep - time.Since(begin)%lookupStep)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
}

// ended looks at the deadline too: a connection may notice it before ctx does.
func ended(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// answered keeps what the answer says. Its status stands however its body ends.
func (a *attempt) answered(res *http.Response) {
	a.status = res.StatusCode
	a.retryAfter = retry.After(res.Header, time.Now(), longestRetryAfter)
	switch a.status / 100 {
	case 2:
	case 3:
		a.err = fmt.Sprintf("answered %d and redirects are not followed: register the new URL", a.status)
	default:
		a.err = strings.TrimSpace(fmt.Sprintf("answered %d %s", a.status, http.StatusText(a.status)))
	}
	head, err := io.ReadAll(io.LimitReader(res.Body, excerptBytes))
	a.response = printable(string(head))
	if err == nil {
		_, _ = io.CopyN(io.Discard, res.Body, drainBytes-excerptBytes)
	}
}

// printable is the beginning of s as one line that any log, page and database
// takes.
func printable(s string) string { return text.Cut(text.Line(s), excerptRunes) }

// fault says in a few words why a public address, or one that an operator allows,
// gave no answer. It leaves out what errors tell of addresses: ours and those that a
// name resolved to.
func (p *poster) fault(err error) string {
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the certificate is not valid: " + certificateFault(certificate.Err)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "TLS failed: the server does not speak TLS on this port"
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
		return "the connection was closed before there was an answer"
	}
	if isOp {
		err = op.Err
	}
	return protocolFault(err)
}

func protocolFault(err error) string {
	text := strings.NewReplacer("net/http: ", "", "HTTP/1.x transport connection broken: ", "").Replace(err.Error())
	if alert, ok := strings.CutPrefix(text, "tls: "); ok {
		text = "TLS failed: " + alert
	}
	if strings.HasPrefix(text, "readLoopPeekFailLocked") { // the transport has no better word for it
		text = "the server spoke first, so it is no HTTP server"
	}
	if strings.HasPrefix(text, "malformed HTTP") {
		text, _, _ = strings.Cut(text, ` "`) // it quotes what the server said, which strangers should not see
	}
	return printable(text)
}

func certificateFault(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "it is signed by an unknown authority"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "it is not for this host"
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return "it has expired or is not valid yet"
	}
	return printable(strings.TrimPrefix(err.Error(), "x509: "))
}
