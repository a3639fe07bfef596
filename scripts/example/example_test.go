package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

const module = "github.com/sendonce/sendonce/"

func TestMain(m *testing.M) { sandbox.Main(m) }

// restartableProcess is a process behind a proxy. The proxy's URL stays the same when the process is restarted.
type restartableProcess struct {
	t           *testing.T
	bin         string
	env         []string
	args        []string
	databaseURL string
	db          *pgxpool.Pool
	process     *sandbox.Process
	address     atomic.Pointer[url.URL]
	proxy       *httptest.Server
	killPoint   atomic.Pointer[killPoint] // nil = none
}

// killPoint is a call during which a test kills the called process or another one. The caller gets a 502 instead of the
// response.
type killPoint struct {
	path    string        // the end of the call's path
	served  bool          // true = the called process serves the call before the kill; false = the call does not reach it
	reached chan struct{} // closed by the proxy when the process is to be killed
	resumed chan struct{} // closed by the test once the process is dead
}

// startBehindProxy starts the process and its proxy. Both run until the end of the test.
func (v *restartableProcess) startBehindProxy(t *testing.T, databaseURL string) *restartableProcess {
	t.Helper()
	v.t = t
	v.proxy = httptest.NewServer(v)
	t.Cleanup(v.proxy.Close)
	db, err := pgxpool.New(t.Context(), databaseURL)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	v.databaseURL, v.db = databaseURL, db
	v.env = append(v.env, "DATABASE_URL="+databaseURL, "PORT=0")
	v.start()
	return v
}

// ServeHTTP forwards a call to the process. The call of the kill point gets a 502, and is forwarded only if served is true.
func (v *restartableProcess) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	forward := &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(v.address.Load()) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	point := v.killPoint.Load()
	if point == nil || !strings.HasSuffix(r.URL.Path, point.path) || !v.killPoint.CompareAndSwap(point, nil) {
		forward.ServeHTTP(w, r)
		return
	}
	if point.served {
		response := httptest.NewRecorder()
		forward.ServeHTTP(response, r)
		if response.Code/100 != 2 {
			v.killPoint.Store(point)
			w.WriteHeader(response.Code)
			return
		}
	}
	close(point.reached)
	select {
	case <-point.resumed:
	case <-v.t.Context().Done():
	}
	w.WriteHeader(http.StatusBadGateway)
}

func (v *restartableProcess) start() {
	v.t.Helper()
	v.process = sandbox.StartProcess(v.t, v.bin, v.env, v.args...)
	v.address.Store(&url.URL{Scheme: "http", Host: addressOf(v.t, v.process)})
}

// addressOf waits until a process listens, and returns its address.
func addressOf(t *testing.T, p *sandbox.Process) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, p.WaitFor(ctx, `"msg":"listening"`))
	address := regexp.MustCompile(`"msg":"listening".*"address":"([^"]+)"`).FindStringSubmatch(p.Output())
	require.Len(t, address, 2, p.Output())
	return address[1]
}

// startSendonce starts all functions with a new database, and a trigger.
func startSendonce(t *testing.T, natsURL, triggerNATS string, more ...string) (sendonce *restartableProcess, trigger *sandbox.Process) {
	t.Helper()
	bin := sandbox.Build(t, module+"functions/sendonce")
	env := slices.Concat(sandbox.RolesEnv(), []string{"BASIC_AUTH_PASSWORD=secret", "SENDONCE_ENCRYPTION_KEYS=" + sandbox.EncryptionKey,
		"APP_HOST=127.0.0.1", "PORT=0", "NATS_URL=" + natsURL}, more)
	sendonce = (&restartableProcess{bin: bin, env: env}).startBehindProxy(t, sandbox.NewDatabase(t))
	trigger = sandbox.StartProcess(t, bin, append(slices.Clone(env), "NATS_URL="+triggerNATS, "SENDONCE_FUNCTIONS_URL="+sendonce.proxy.URL,
		"SENDONCE_SAFETY_TICK=1s"), "trigger")
	return sendonce, trigger
}

func (v *restartableProcess) count(sql string, args ...any) (n int) {
	v.t.Helper()
	require.NoError(v.t, v.db.QueryRow(v.t.Context(), sql, args...).Scan(&n))
	return n
}

// killDuring runs act, waits for a call to callee with a path that ends with path, kills v during the call, and starts v
// again. For served see killPoint.
func (v *restartableProcess) killDuring(ctx context.Context, callee *restartableProcess, path string, served bool, act func()) {
	v.t.Helper()
	point := &killPoint{path: path, served: served, reached: make(chan struct{}), resumed: make(chan struct{})}
	callee.killPoint.Store(point)
	act()
	select {
	case <-point.reached:
	case <-ctx.Done():
		v.t.Fatal("no call to " + path)
	}
	require.NoError(v.t, v.process.Kill())
	close(point.resumed)
	v.start()
}

// postUntilStored posts an order again and again until the response is 200.
func postUntilStored(ctx context.Context, shop string, o order) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, shop+"/orders", strings.NewReader(string(body)))
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			continue
		}
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			return nil
		}
	}
	return ctx.Err()
}

func pointsOf(t *testing.T, service, user string) string {
	t.Helper()
	res, err := http.Get(service + "/points/" + user)
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, string(text))
	return strings.TrimSpace(string(text))
}

func TestOrdersGivePointsOnceDespiteKills(t *testing.T) {
	t.Parallel()
	nats, example := natsserver.New(t, natsserver.Options{}), sandbox.Build(t, module+"scripts/example")
	ctx, cancel := context.WithTimeout(t.Context(), 55*time.Second)
	defer cancel()

	sendonce, _ := startSendonce(t, nats.URL(), nats.URL())
	service := func(name string) *restartableProcess {
		env := []string{"SENDONCE_URL=" + sendonce.proxy.URL, "SENDONCE_USER=admin", "SENDONCE_PASSWORD=secret", "NATS_URL=" + nats.URL()}
		return (&restartableProcess{bin: example, env: env, args: []string{name}}).startBehindProxy(t, sandbox.NewEmptyDatabase(t))
	}
	shop, points := service("order"), service("points")

	orders, want, failures := make([]order, 20), map[string]int64{}, make([]error, 20)
	for i := range orders {
		orders[i] = order{ID: fmt.Sprint("order-", i), User: fmt.Sprint("user-", i%3), Amount: 1 << i}
		want[orders[i].User] += orders[i].Amount
	}
	var posts sync.WaitGroup
	postOrders := func(from, to int) {
		for i := from; i < to; i++ {
			posts.Go(func() { failures[i] = postUntilStored(ctx, shop.proxy.URL, orders[i]) })
		}
	}
	kills := []struct {
		killed, callee *restartableProcess
		path           string
		served         bool
	}{
		{shop, shop, "/orders", true},                  // stored, but the response is lost
		{points, sendonce, "/received", false},         // credited, but not confirmed
		{sendonce, sendonce, "/api/v1/messages", true}, // saved, but the response is lost
		{shop, sendonce, "/api/v1/messages", true},     // forwarded, but still in the outbox
		{points, sendonce, "/received", true},          // confirmed, but not acknowledged to NATS
		{sendonce, sendonce, "/received", true},        // received, but the response is lost
	}
	for i, k := range kills {
		k.killed.killDuring(ctx, k.callee, k.path, k.served, func() { postOrders(3*i, 3*i+3) })
	}
	postOrders(3*len(kills), len(orders))
	posts.Wait()
	require.NoError(t, errors.Join(failures...))
	postOrders(0, len(orders)) // each a second time
	posts.Wait()
	require.NoError(t, errors.Join(failures...))

	until, _ := ctx.Deadline()
	require.Eventually(t, func() bool {
		return sendonce.count("SELECT count(*) FROM reliable_messages WHERE status = 2 /* received */") == len(orders) &&
			shop.count("SELECT count(*) FROM message_outbox") == 0
	}, time.Until(until), 20*time.Millisecond, "all messages must be received")
	require.Equal(t, len(orders), shop.count("SELECT count(*) FROM orders"))
	require.Equal(t, len(orders), sendonce.count("SELECT count(*) FROM reliable_messages"))
	for user, sum := range want {
		require.Equal(t, fmt.Sprint(sum), pointsOf(t, points.proxy.URL, user), user)
	}
	require.Equal(t, len(orders), points.count("SELECT count(*) FROM message_inbox"))
	require.Equal(t, "0", pointsOf(t, points.proxy.URL, "unknown"))
}
