package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

// All is the name of the process with all functions.
const All = ""

// Cluster is a database, a NATS server and processes of Sendonce.
type Cluster struct {
	T           *testing.T
	NATS        *natsserver.Server
	DatabaseURL string
	Bin         string      // path of the built functions/sendonce
	Env         []string    // environment of the processes that are started later
	Client      *api.Client // calls the process of the function "messages", or of all functions
	Admin       *Client     // calls the same URL, and is connected to the database

	natsURL     string
	natsOptions natsserver.Options // of StartNATS

	mu        sync.Mutex // guards the fields below; the proxy of StartEach reads addresses concurrently
	processes map[string]*sandbox.Process
	addresses map[string]string
	natsConn  *nats.Conn
}

// New creates a database and starts NATS. No function runs yet.
func New(t *testing.T, env ...string) *Cluster {
	t.Helper()
	return NewOn(t, sandbox.NewDatabase(t), env...)
}

// NewOn is New on a given database, which must be migrated.
func NewOn(t *testing.T, databaseURL string, env ...string) *Cluster {
	t.Helper()
	options := natsserver.Options{Dir: t.TempDir()}
	server := NATSIn(t, options)
	options.Port = server.Port()
	c := NewAt(t, databaseURL, server.URL(), env...)
	c.NATS, c.natsOptions = server, options
	return c
}

// NewAt is NewOn with a NATS server that the test has started and that StartNATS cannot start again.
func NewAt(t *testing.T, databaseURL, natsURL string, env ...string) *Cluster {
	t.Helper()
	return &Cluster{
		T: t, natsURL: natsURL, DatabaseURL: databaseURL, Bin: Binary(t), Admin: NewClient(t, "").Connect(databaseURL),
		Env:       Settings(databaseURL, append([]string{"NATS_URL=" + natsURL}, env...)...),
		processes: map[string]*sandbox.Process{}, addresses: map[string]string{},
	}
}

// Open is New with all functions in one process, and a trigger. The safety tick is a second unless env sets it.
func Open(t *testing.T, env ...string) *Cluster {
	t.Helper()
	c := New(t, append([]string{"SENDONCE_SAFETY_TICK=1s"}, env...)...)
	c.StartAll()
	return c
}

// OpenTwoPhase is Open with TWO_PHASE_ENABLED, but without a trigger. It creates the streams.
func OpenTwoPhase(t *testing.T, env ...string) *Cluster {
	t.Helper()
	c := New(t, append([]string{"SENDONCE_SAFETY_TICK=1s", "TWO_PHASE_ENABLED=true"}, env...)...)
	c.StartWithoutTrigger()
	c.EnsureStreams()
	return c
}

// OpenMessages is New with the function "messages" as the only process.
func OpenMessages(t *testing.T, env ...string) *Cluster {
	t.Helper()
	c := New(t, env...)
	c.use(c.Start("messages"))
	return c
}

func (c *Cluster) use(address string) {
	c.Client = api.NewClient(address, "admin", "secret")
	c.Admin.URL = address
}

// StartNATS starts the NATS server again, after the test has stopped it, with the same data and port.
func (c *Cluster) StartNATS() {
	c.T.Helper()
	c.NATS = NATSIn(c.T, c.natsOptions)
}

// Start starts one function, or All, and returns its URL. Process and Address then return the new process and this URL;
// an earlier process of that name continues to run.
func (c *Cluster) Start(function string, env ...string) string {
	c.T.Helper()
	p := StartProcess(c.T, c.Bin, slices.Concat(c.Env, env, []string{"FUNCTION_TARGET=" + function}))
	address := Address(c.T, p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes[function], c.addresses[function] = p, address
	return address
}

// StartWithoutTrigger is Start of all functions. Client and Admin then call the new process.
func (c *Cluster) StartWithoutTrigger(env ...string) {
	c.T.Helper()
	c.use(c.Start(All, env...))
}

// StartAll is StartWithoutTrigger and a trigger. It returns when the trigger has created the streams.
func (c *Cluster) StartAll(env ...string) {
	c.T.Helper()
	c.StartWithoutTrigger(env...)
	require.NoError(c.T, c.StartTrigger(c.Client.BaseURL).WaitFor(c.T.Context(), `"triggering"`))
	js := c.JetStream()
	Eventually(c.T, func() bool { _, err := js.Stream(c.T.Context(), "USERS"); return err == nil }, "the stream USERS")
}

// StartRelay starts the function relay, and a trigger that calls only this function.
func (c *Cluster) StartRelay() {
	c.T.Helper()
	c.StartTrigger(c.Start("relay"))
}

// StartEach starts every function as a process of its own, and a trigger. The trigger calls the functions through a proxy,
// which calls the newest process of each function.
func (c *Cluster) StartEach(env ...string) *Cluster {
	c.T.Helper()
	c.Env = append(c.Env, env...)
	var names []string
	for _, f := range functions.Catalogue() {
		names = append(names, f.Name)
	}
	c.StartFunctions(names...)
	c.use(c.Address("messages"))
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: c.route, ErrorLog: log.New(io.Discard, "", 0)})
	c.T.Cleanup(proxy.Close)
	c.StartTrigger(proxy.URL)
	return c
}

// StartFunctions starts functions at the same time, each as a process of its own.
func (c *Cluster) StartFunctions(names ...string) {
	c.T.Helper()
	started := map[string]*sandbox.Process{}
	for _, name := range names {
		started[name] = StartProcess(c.T, c.Bin, append(slices.Clone(c.Env), "FUNCTION_TARGET="+name))
	}
	for name, p := range started {
		address := Address(c.T, p)
		c.mu.Lock()
		c.processes[name], c.addresses[name] = p, address
		c.mu.Unlock()
	}
}

// route sends /events/{function} to the newest process of the function.
func (c *Cluster) route(r *httputil.ProxyRequest) {
	if to, err := url.Parse(c.Address(strings.TrimPrefix(r.In.URL.Path, "/events/"))); err == nil {
		r.SetURL(to)
	}
}

// StartTrigger starts a trigger that calls the functions at a URL.
func (c *Cluster) StartTrigger(functionsURL string) *sandbox.Process {
	c.T.Helper()
	p := StartProcess(c.T, c.Bin, append(slices.Clone(c.Env), "SENDONCE_FUNCTIONS_URL="+functionsURL), "trigger")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes["trigger"] = p
	return p
}

// EnsureStreams creates the streams: it starts a trigger that calls no function, and ends the trigger.
func (c *Cluster) EnsureStreams() {
	c.T.Helper()
	p := c.StartTrigger("http://127.0.0.1:1") // where nothing listens
	js := c.JetStream()
	Eventually(c.T, func() bool { _, err := js.Stream(c.T.Context(), "ACCEPTED"); return err == nil }, "the stream ACCEPTED")
	_, err := p.Terminate(WaitLimit)
	require.NoError(c.T, err)
}

// Process returns the newest process of a function, of All, or of "trigger".
func (c *Cluster) Process(name string) *sandbox.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name]
}

// Processes returns the newest process of each name.
func (c *Cluster) Processes() map[string]*sandbox.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.processes)
}

// Address returns the URL of a function, or of All; "" if it was not started.
func (c *Cluster) Address(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addresses[name]
}

// API returns a client of the built-in admin. It calls the function's own process, or if there is none, the process
// with all functions.
func (c *Cluster) API(function string) *api.Client {
	address := c.Address(function)
	if address == "" {
		address = c.Address(All)
	}
	return api.NewClient(address, "admin", "secret")
}

// At returns a client that calls a URL as the built-in admin, and is connected to the database.
func (c *Cluster) At(url string) *Client {
	s := NewClient(c.T, url)
	s.Owner = c.Admin.Owner
	return s
}

// JetStream returns a connection of the user of operators. All calls share one connection, until NATS is stopped.
func (c *Cluster) JetStream() jetstream.JetStream {
	c.T.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.natsConn == nil || !c.natsConn.IsConnected() {
		nc, err := nats.Connect(c.natsURL)
		require.NoError(c.T, err)
		c.T.Cleanup(nc.Close)
		c.natsConn = nc
	}
	js, err := jetstream.New(c.natsConn)
	require.NoError(c.T, err)
	return js
}

// AddEndpoint registers a webhook endpoint of the built-in admin. The API client tries this call only once. If the
// response is 503, because a machine under load is too slow for the first connection to the database, AddEndpoint
// deletes the endpoint that the try may have registered, and tries again.
func (c *Cluster) AddEndpoint(url string, events ...string) (e api.EndpointResponse) {
	c.T.Helper()
	known := c.Admin.QueryText(`select coalesce(string_agg(id::text, ','), '') from webhook_endpoints`)
	Eventually(c.T, func() bool {
		var err error
		e, err = c.API("webhooks").AddEndpoint(c.T.Context(), api.EndpointRequest{URL: url, Events: events})
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Status == http.StatusServiceUnavailable {
			c.Admin.Exec(`delete from webhook_endpoints where url is not null and id::text <> all(string_to_array($1, ','))`, known)
			return false
		}
		require.NoError(c.T, err)
		return true
	})
	return e
}

// Submit submits a task and returns its id.
func (c *Cluster) Submit(change ...func(*api.SendRequest)) string {
	c.T.Helper()
	req := api.SendRequest{PhoneNumber: "13800138000", Content: "hi", IdempotencyKey: api.NewKey()}
	for _, f := range change {
		f(&req)
	}
	sent, err := c.API("submit").Send(c.T.Context(), req)
	require.NoError(c.T, err)
	return sent.TaskID
}

// Claim claims tasks for the app "app"; wait is in seconds.
func (c *Cluster) Claim(wait int) []api.ClaimedTask {
	c.T.Helper()
	tasks, err := c.API("claim").Claim(c.T.Context(), api.ClaimRequest{AppID: "app", Wait: &wait})
	require.NoError(c.T, err)
	return tasks
}

// FinishTask submits, claims and reports one task as succeeded, and returns its id.
func (c *Cluster) FinishTask(change ...func(*api.SendRequest)) string {
	c.T.Helper()
	id := c.Submit(append([]func(*api.SendRequest){func(r *api.SendRequest) {
		r.Source, r.Metadata = "shop", json.RawMessage(`{"order":4711}`)
	}}, change...)...)
	require.Len(c.T, c.Claim(0), 1)
	succeeded := 2
	_, err := c.API("report").Report(c.T.Context(), api.ReportRequest{TaskID: id, AppID: "app", Status: &succeeded})
	require.NoError(c.T, err)
	return id
}

// FinishTasks submits, claims and reports n tasks as succeeded, and returns their ids.
func (c *Cluster) FinishTasks(n int) []string {
	c.T.Helper()
	_, err := c.API("submit").SendBatch(c.T.Context(), slices.Repeat([]api.SendRequest{{PhoneNumber: "13800138000", Content: "hi"}}, n))
	require.NoError(c.T, err)
	ids, err := ClaimAll(c.API("claim"))
	require.NoError(c.T, err)
	require.Len(c.T, ids, n)
	reports, succeeded := make([]api.ReportRequest, n), 2
	for i, id := range ids {
		reports[i] = api.ReportRequest{TaskID: id, Status: &succeeded}
	}
	results, err := c.API("report").ReportBatch(c.T.Context(), "app", reports)
	require.NoError(c.T, err)
	for _, r := range results {
		require.Nil(c.T, r.Err)
	}
	return ids
}

// ClaimAll claims every pending task of the default queue for the app "app" and returns the ids.
func ClaimAll(c *api.Client) (ids []string, err error) {
	limit := 1000
	for {
		tasks, err := c.Claim(context.Background(), api.ClaimRequest{AppID: "app", Limit: &limit})
		if err != nil || len(tasks) == 0 {
			return ids, err
		}
		for _, task := range tasks {
			ids = append(ids, task.TaskID)
		}
	}
}

// WithoutConfirm is a change for Save: the message needs no confirmation, so it is final when it is sent.
func WithoutConfirm(r *api.MessageRequest) { r.Confirm = new(bool) }

// Save submits a message that is saved before the response, and returns its id.
func (c *Cluster) Save(to string, change ...func(*api.MessageRequest)) string {
	c.T.Helper()
	req := api.MessageRequest{ClientMsgID: api.NewKey(), To: to, Data: []byte(`{"order":4711}`)}
	for _, f := range change {
		f(&req)
	}
	saved, err := c.Client.SubmitMessage(c.T.Context(), req)
	require.NoError(c.T, err)
	require.Equal(c.T, "saved", saved.Ack)
	return saved.ServerMsgID
}

// Accept submits a message to bob with ack accepted: it may be acknowledged before it is saved.
func (c *Cluster) Accept(key, data string) api.MessageAck {
	c.T.Helper()
	ack, err := c.Client.SubmitMessage(c.T.Context(), api.MessageRequest{ClientMsgID: key, To: "user:bob", Data: api.JSON(data), Ack: "accepted"})
	require.NoError(c.T, err)
	return ack
}

func (c *Cluster) Message(id string) api.MessageResponse {
	c.T.Helper()
	m, err := c.Client.Message(c.T.Context(), id)
	require.NoError(c.T, err)
	return m
}

// WaitMessage waits until a message is in a state.
func (c *Cluster) WaitMessage(id, state string) api.MessageResponse {
	c.T.Helper()
	Eventually(c.T, func() bool { return c.Message(id).State == state }, state)
	return c.Message(id)
}

// SavedMessages counts the messages in Postgres.
func (c *Cluster) SavedMessages() int { return c.Admin.Count(`select count(*) from messages`) }

// Inbox returns the events in a user's inbox, oldest first.
func (c *Cluster) Inbox(user string) []*jetstream.RawStreamMsg {
	c.T.Helper()
	return slices.DeleteFunc(c.stored("USERS"), func(m *jetstream.RawStreamMsg) bool { return m.Subject != "inbox."+user })
}

// KillHeldRelay kills a process of relay that waits because of HoldChange, and ends its database session. So Postgres
// does not run the statements that the process has already sent.
func (c *Cluster) KillHeldRelay(relay *sandbox.Process) {
	c.T.Helper()
	require.NoError(c.T, relay.Kill())
	c.Admin.Exec(`select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and not granted and ` + inThisDatabase)
}

// WaitingEvents counts the events in the outbox: relay has not published them yet, or has not recorded that it did.
func (c *Cluster) WaitingEvents() int {
	return c.Admin.Count(`select coalesce(sum(cardinality(ids)), 0) from event_outbox`)
}

// stored returns the messages of a stream, oldest first.
func (c *Cluster) stored(stream string) (all []*jetstream.RawStreamMsg) {
	c.T.Helper()
	s, err := c.JetStream().Stream(c.T.Context(), stream)
	require.NoError(c.T, err)
	state := s.CachedInfo().State
	for seq := max(state.FirstSeq, 1); seq <= state.LastSeq; seq++ {
		m, err := s.GetMsg(c.T.Context(), seq)
		require.NoError(c.T, err)
		all = append(all, m)
	}
	return all
}
