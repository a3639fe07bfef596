package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/loglimit"
)

const (
	sinkName        = "the sink of make run" // the description of the endpoint, by which a later run finds the endpoint
	sinkConnections = 128                    // so a flood of calls uses at most about 12 MB of memory
	maxWebhook      = 80 << 10               // bytes: 64 KiB of data and the envelope
	registerTimeout = 10 * time.Second
	readTimeout     = 10 * time.Second
	closeTimeout    = 2 * time.Second
)

// sink receives webhooks and prints them. It is an endpoint of the built-in admin, and may be the callback
// URL of the admin's tasks and messages.
type sink struct {
	client     *api.Client
	out        io.Writer
	listener   net.Listener // nil = SENDONCE_OUTGOING_NETWORKS forbids calls to the sink
	url        string
	server     *httpserver.Server // nil until open
	served     chan struct{}      // closed once the server has stopped
	endpointID string
	secret     string               // of the endpoint; verifies webhooks
	signing    string               // the signing secret of the admin; verifies callbacks of tasks and messages
	printed    *loglimit.ByKey[int] // limits the lines of unverified calls, by the status of the response
}

// listenForSink opens the port of the sink. Call it before the server starts: the port stays open until close, so that no
// other program can receive the webhooks. It returns nil if the setting SINK is false, and a sink without a port if the
// server may not call the sink.
func listenForSink(ctx context.Context, s settings, out io.Writer) (*sink, error) {
	if !s.sink {
		return nil, nil
	}
	k := &sink{client: api.NewClient(s.url(), s.username, s.password), out: out, served: make(chan struct{}), printed: new(loglimit.ByKey[int])}
	if !s.allowsSink() {
		return k, nil
	}
	// The examples in the docs use the port after that of the API. If it is taken, the sink has another port.
	listener, err := listenLocally(ctx, s.port+1)
	if err != nil {
		listener, err = listenOnSavedPort(ctx, s.home, "sink", out)
	}
	if err != nil {
		return nil, err
	}
	k.listener, k.url = listener, "http://"+listener.Addr().String()
	return k, nil
}

// open registers the sink as an endpoint at the server, which must be ready, and then accepts calls. Earlier calls wait
// until then, because the sink has no secrets yet to verify them. If open returns an error, the port is closed.
func (k *sink) open(ctx context.Context, logs io.Writer) error {
	if k.listener == nil {
		return fmt.Errorf("the server would not call it: %s does not have %s", outgoingSetting, loopback)
	}
	if err := k.register(ctx); err != nil {
		return errors.Join(err, k.listener.Close())
	}
	k.server = httpserver.New(k, sinkConnections, log.New(logs, "", log.LstdFlags))
	k.server.ReadTimeout, k.server.IdleTimeout = readTimeout, readTimeout
	go k.serve()
	return nil
}

// register deletes the endpoints that killed runs left, and then creates the endpoint of this run.
func (k *sink) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	signing, err := k.client.SigningSecret(ctx)
	if err != nil {
		return fmt.Errorf("read the signing secret: %w", err)
	}
	var admin api.ID // the zero ID is that of the built-in admin
	// One page contains all endpoints that a caller can have.
	page, err := k.client.Endpoints(ctx, api.EndpointsRequest{CallerID: &admin})
	if err != nil {
		return fmt.Errorf("list the endpoints: %w", err)
	}
	for _, e := range page.Items {
		if e.Description != sinkName {
			continue
		}
		if err := k.unregister(ctx, e.ID); err != nil {
			return err
		}
	}
	endpoint, err := k.client.AddEndpoint(ctx, api.EndpointRequest{URL: k.url, Description: sinkName})
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	k.endpointID, k.secret, k.signing = endpoint.ID, endpoint.Secret, signing.Secret
	return nil
}

func (k *sink) unregister(ctx context.Context, id string) error {
	err := k.client.DeleteEndpoint(ctx, id)
	var refused *api.Error
	if err == nil || errors.As(err, &refused) && refused.Code == "not_found" {
		return nil
	}
	return fmt.Errorf("delete endpoint %s: %w", id, err)
}

func (k *sink) serve() {
	defer close(k.served)
	if err := k.server.Serve(k.listener); !errors.Is(err, http.ErrServerClosed) {
		fmt.Fprintf(k.out, "sink: %v\n", err)
	}
}

// removeEndpoint deletes the endpoint. If the server does not respond, the next run deletes the endpoint.
func (k *sink) removeEndpoint() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := k.unregister(ctx, k.endpointID); err != nil {
		fmt.Fprintf(k.out, "sink: %v; the next run deletes it\n", err)
	}
}

// close stops the server, if open has started it, and closes the port.
func (k *sink) close() {
	if k == nil || k.listener == nil {
		return
	}
	if k.server == nil {
		_ = k.listener.Close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := k.server.Shutdown(ctx); err != nil {
		fmt.Fprintf(k.out, "sink: calls were cut off: %v\n", errors.Join(err, k.server.Close()))
	}
	<-k.served
}

func (k *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxWebhook))
	if err != nil {
		k.refuse(w, http.StatusBadRequest, err)
		return
	}
	origin, err := k.verify(r.Header, body)
	verified := err == nil
	if errors.Is(err, api.ErrWebhookSignature) && r.URL.Path != "/" {
		// The user may have registered another endpoint at this port. The sink does not have the secret of that endpoint.
		origin, err = "not verified: "+printable(r.URL.Path)+" has a secret of its own", nil
	}
	if err != nil {
		k.refuse(w, http.StatusUnauthorized, err)
		return
	}
	var event api.WebhookEvent
	if err := json.Unmarshal(body, &event); err != nil {
		k.refuse(w, http.StatusBadRequest, err)
		return
	}
	eventType := strings.TrimSuffix(strings.TrimPrefix(event.Type, "sendonce.task."), ".v1")
	defer w.WriteHeader(http.StatusNoContent) // once the line is printed
	line := fmt.Sprintf("received %s %s (%s)", printable(eventType), printable(cmp.Or(event.Subject, event.ID)), origin)
	if !verified {
		k.printLimited(http.StatusNoContent, line)
		return
	}
	fmt.Fprintln(k.out, line)
}

// verify returns a text that says with which of the secrets the body is signed.
func (k *sink) verify(h http.Header, body []byte) (string, error) {
	now := time.Now()
	err := api.VerifyWebhook(h, body, now, k.secret)
	if err == nil {
		return "webhook verified", nil
	}
	if errors.Is(err, api.ErrWebhookSignature) && api.VerifyWebhook(h, body, now, k.signing) == nil {
		return "callback verified", nil
	}
	return "", err
}

func (k *sink) refuse(w http.ResponseWriter, status int, err error) {
	k.printLimited(status, fmt.Sprintf("sink: refused a call with %d: %s", status, printable(err.Error())))
	http.Error(w, err.Error(), status)
}

// printLimited prints at most one line a minute for each status, because any program on this machine can make
// unverified calls.
func (k *sink) printLimited(status int, line string) {
	unprinted, ok := k.printed.Next(status)
	if !ok {
		return
	}
	if unprinted > 0 {
		line = fmt.Sprintf("%s; %d more since the last such line", line, unprinted)
	}
	fmt.Fprintln(k.out, line)
}
