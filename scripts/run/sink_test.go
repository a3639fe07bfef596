package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/loglimit"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// registry is a fake server that stores the endpoints of the admin.
type registry struct {
	mu        sync.Mutex
	endpoints []api.EndpointResponse
	signing   string
}

func (g *registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	user, password, _ := r.BasicAuth()
	response := api.Envelope{Code: http.StatusOK, Message: "success"}
	switch path, id, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api/v1/webhooks/"), "/"); {
	case user != "admin" || password != "secret":
		response = api.Envelope{Code: http.StatusUnauthorized, Message: "no", Error: "unauthenticated"}
	case path == "signing-secret":
		response.Data = api.SigningSecretResponse{Secret: g.signing}
	case path == "endpoints" && r.Method == http.MethodGet && r.URL.RawQuery == "caller_id=0":
		response.Data = api.Page[api.EndpointResponse]{Items: g.endpoints}
	case path == "endpoints" && r.Method == http.MethodPost:
		e := api.EndpointResponse{ID: "new", Secret: api.NewWebhookSecret()}
		if json.NewDecoder(r.Body).Decode(&e) != nil {
			response = api.Envelope{Code: http.StatusBadRequest, Message: "no", Error: "invalid_request"}
			break
		}
		g.endpoints = append(g.endpoints, e)
		response.Data = e
	case path == "endpoints" && r.Method == http.MethodDelete:
		response = api.Envelope{Code: http.StatusNotFound, Message: "no", Error: "not_found"}
		for i, e := range g.endpoints {
			if e.ID == id {
				g.endpoints = append(g.endpoints[:i:i], g.endpoints[i+1:]...)
				response = api.Envelope{Code: http.StatusNoContent}
			}
		}
	default:
		response = api.Envelope{Code: http.StatusNotFound, Message: r.URL.String(), Error: "not_found"}
	}
	w.WriteHeader(response.Code)
	if response.Code != http.StatusNoContent {
		// The sink may have closed the connection.
		_ = json.NewEncoder(w).Encode(response)
	}
}

// byID returns the endpoints by id.
func (g *registry) byID() map[string]api.EndpointResponse {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string]api.EndpointResponse{}
	for _, e := range g.endpoints {
		all[e.ID] = e
	}
	return all
}

// settingsFor returns settings of a `make run` with a new home. server stands for its API.
func settingsFor(t *testing.T, server *httptest.Server) settings {
	t.Helper()
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	s, err := parseSettings(map[string]string{"SENDONCE_HOME": t.TempDir(), "PORT": at.Port(), "BASIC_AUTH_PASSWORD": "secret"})
	require.NoError(t, err)
	return s
}

// openSink returns a sink that is registered at the server of s.
func openSink(ctx context.Context, s settings, logs, out io.Writer) (*sink, error) {
	k, err := listenForSink(ctx, s, out)
	if err != nil {
		return nil, err
	}
	return k, k.open(ctx, logs)
}

// newSink returns a fake server, a sink that is registered there, and the output of the sink.
func newSink(t *testing.T) (*registry, *sink, *sandbox.LogBuffer) {
	t.Helper()
	server, out := &registry{signing: api.NewWebhookSecret()}, &sandbox.LogBuffer{}
	httpServer := httptest.NewServer(server)
	t.Cleanup(httpServer.Close)
	k, err := openSink(t.Context(), settingsFor(t, httpServer), out, out)
	require.NoError(t, err)
	t.Cleanup(k.close)
	return server, k, out
}

// postWebhook posts body to a sink as one webhook and returns the status.
func postWebhook(t *testing.T, to, body string, at time.Time, secret string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, strings.NewReader(body))
	require.NoError(t, err)
	if secret != "" {
		require.NoError(t, api.SignWebhook(req.Header, "id", at, []byte(body), secret))
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(t, err)
	return res.StatusCode
}

func TestSinkPrintsVerifiedWebhooks(t *testing.T) {
	t.Parallel()
	server, k, out := newSink(t)
	endpoint := server.byID()["new"]
	require.Equal(t, k.url, endpoint.URL)
	require.Empty(t, endpoint.Events, "an empty list means all events")

	const event = `{"type":"sendonce.task.succeeded.v1","subject":"0198","data":{}}`
	now := time.Now()
	for _, c := range []struct {
		body, secret string
		at           time.Time
		status       int
		line         string
	}{
		{event, endpoint.Secret, now, http.StatusNoContent, "received succeeded 0198 (webhook verified)"},
		{event, server.signing, now, http.StatusNoContent, "received succeeded 0198 (callback verified)"},
		{`{"type":"sendonce.webhook.disabled.v1","subject":"e"}`, endpoint.Secret, now, http.StatusNoContent, "received sendonce.webhook.disabled e (webhook verified)"},
		{`{"type":"order.paid.v1","id":"a\u001b[2Jb"}`, server.signing, now, http.StatusNoContent, "received order.paid a [2Jb (callback verified)"},
		{event, api.NewWebhookSecret(), now, http.StatusUnauthorized, "sink: refused a call with 401: " + api.ErrWebhookSignature.Error()},
		{event, endpoint.Secret, now.Add(-time.Hour), http.StatusUnauthorized, "sink: refused a call with 401: " + api.ErrWebhookTime.Error() + ": it is "},
		{event, "", now, http.StatusUnauthorized, "sink: refused a call with 401: " + api.ErrWebhookHeaders.Error()},
		{"no event", endpoint.Secret, now, http.StatusBadRequest, "sink: refused a call with 400: "},
		{strings.Repeat(" ", maxWebhook+1), endpoint.Secret, now, http.StatusBadRequest, "sink: refused a call with 400: http: request body too large"},
	} {
		k.printed = new(loglimit.ByKey[int])
		before := len(out.String())
		require.Equal(t, c.status, postWebhook(t, k.url, c.body, c.at, c.secret), c.line)
		require.True(t, strings.HasPrefix(out.String()[before:], c.line), out.String()[before:])
	}
}

func TestSinkPrintsWebhooksOfOtherEndpoints(t *testing.T) {
	t.Parallel()
	server, k, out := newSink(t)
	const event = `{"type":"sendonce.task.succeeded.v1","subject":"0198","data":{}}`
	require.Equal(t, http.StatusNoContent, postWebhook(t, k.url+"/mine", event, time.Now(), api.NewWebhookSecret()))
	require.Equal(t, http.StatusNoContent, postWebhook(t, k.url+"/mine", event, time.Now(), server.signing))
	require.Equal(t, http.StatusUnauthorized, postWebhook(t, k.url+"/mine", event, time.Now(), ""))
	require.True(t, strings.HasPrefix(out.String(), "received succeeded 0198 (not verified: /mine has a secret of its own)\nreceived succeeded 0198 (callback verified)\n"+
		"sink: refused a call with 401: "+api.ErrWebhookHeaders.Error()), out.String())
}

// Any program on this machine can call the sink. Such a program must not be able to fill the terminal.
func TestSinkLimitsLinesOfUnverifiedCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out := &sandbox.LogBuffer{}
		k := &sink{out: out, printed: new(loglimit.ByKey[int]), secret: api.NewWebhookSecret(), signing: api.NewWebhookSecret()}
		call := func(path, secret string) {
			const event = `{"type":"sendonce.task.succeeded.v1","subject":"0198","data":{}}`
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(event))
			if secret != "" {
				require.NoError(t, api.SignWebhook(r.Header, "id", time.Now(), []byte(event), secret))
			}
			k.ServeHTTP(httptest.NewRecorder(), r)
		}
		unknown := api.NewWebhookSecret()
		calls := func() {
			for range 100 {
				call("/", "")
				call("/mine", unknown)
			}
			call("/", k.secret)
			call("/", k.secret)
		}
		const verified = "received succeeded 0198 (webhook verified)\n"
		refused := "sink: refused a call with 401: " + api.ErrWebhookHeaders.Error() + ": webhook-id is empty or has a full stop"
		const unverified = "received succeeded 0198 (not verified: /mine has a secret of its own)"
		calls()
		require.Equal(t, refused+"\n"+unverified+"\n"+verified+verified, out.String())
		time.Sleep(time.Minute)
		calls()
		require.Equal(t, refused+"; 99 more since the last such line\n"+unverified+"; 99 more since the last such line\n"+verified+verified,
			strings.TrimPrefix(out.String(), refused+"\n"+unverified+"\n"+verified+verified))
	})
}

// Not parallel: if another test starts a process, that process holds the open ports of this test until its exec.
func TestSinkRemovesItsEndpoint(t *testing.T) {
	server := &registry{signing: api.NewWebhookSecret(), endpoints: []api.EndpointResponse{
		{ID: "killed", Description: sinkName}, {ID: "of another program", Description: "mine"}, {ID: "killed too", Description: sinkName},
	}}
	listening := httptest.NewServer(server)
	defer listening.Close()
	out := &sandbox.LogBuffer{}
	s := settingsFor(t, listening)
	k, err := openSink(t.Context(), s, out, out)
	require.NoError(t, err)
	endpoints := server.byID()
	require.Len(t, endpoints, 2)
	require.Contains(t, endpoints, "new")
	require.Contains(t, endpoints, "of another program")
	firstURL := k.url
	k.removeEndpoint()
	k.close()
	require.Len(t, server.byID(), 1)
	require.Contains(t, server.byID(), "of another program")

	k, err = openSink(t.Context(), s, out, out)
	require.NoError(t, err)
	require.Equal(t, firstURL, k.url, "the URL must be that of the first sink")
	require.Empty(t, out.String())
	listening.Close()
	k.removeEndpoint()
	k.close()
	require.Contains(t, out.String(), "sink: delete endpoint new: ")
	require.Contains(t, out.String(), "; the next run deletes it\n")
}

// Not parallel: if another test starts a process, that process holds the open ports of this test until its exec.
func TestSinkRegistrationFails(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	s := settingsFor(t, server)
	_, err := openSink(t.Context(), s, io.Discard, io.Discard)
	require.EqualError(t, err, "read the signing secret: 404: Not Found")
	listener, err := listenLocally(t.Context(), savedPort(s.home+"/sink.port"))
	require.NoError(t, err, "the port of the sink must be closed")
	require.NoError(t, listener.Close())

	s.all["SENDONCE_OUTGOING_NETWORKS"] = "10.0.0.0/8"
	_, err = openSink(t.Context(), s, io.Discard, io.Discard)
	require.EqualError(t, err, "the server would not call it: SENDONCE_OUTGOING_NETWORKS does not have 127.0.0.1")
}

func TestSinkReceivesTaskEvents(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t)
	h.waitReady(t, p)
	sinkURL := printedOnce(t, p, `sink +(http\S+) .*`)
	received := func(p *sandbox.Process, key, more, origin string) {
		t.Helper()
		id := idOf(t, h.submit(t, key, "hello", more))
		require.NoError(t, p.WaitFor(within(t, time.Minute), "received succeeded "+id+" ("+origin+" verified)\n"))
	}
	received(p, "first", "", "webhook")
	received(p, "second", `,"callback_url":"`+sinkURL+`"`, "callback")
	require.Equal(t, []string{sinkURL}, h.endpoints(t))
	require.NoError(t, p.Kill())

	p = h.start(t, "PROCS=1")
	h.waitReady(t, p)
	received(p, "third", "", "webhook")
	require.Equal(t, []string{sinkURL}, h.endpoints(t), "the endpoint of the killed run must be deleted")

	code, err := p.Terminate(time.Minute)
	require.NoError(t, err)
	require.Zero(t, code, p.Output())

	p = h.start(t, "SINK=false")
	h.waitReady(t, p)
	require.NotContains(t, p.Output(), "  sink ")
	require.Empty(t, h.endpoints(t))
	_, err = p.Terminate(time.Minute)
	require.NoError(t, err)

	p = h.start(t, "SENDONCE_OUTGOING_NETWORKS=10.0.0.0/8")
	h.waitReady(t, p)
	require.Contains(t, p.Output(), "sink      none: the server would not call it: SENDONCE_OUTGOING_NETWORKS does not have 127.0.0.1\n")
}

// endpoints returns the URLs of all registered endpoints.
func (h testRun) endpoints(t *testing.T) []string {
	t.Helper()
	page, err := api.NewClient(h.url(), "admin", h.password(t)).Endpoints(t.Context(), api.EndpointsRequest{})
	require.NoError(t, err)
	var urls []string
	for _, e := range page.Items {
		urls = append(urls, e.URL)
	}
	return urls
}
