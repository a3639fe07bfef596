package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/scripts/bench"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// The memory of a process is stable when stableReadings consecutive readings are equal.
const (
	readingInterval = 50 * time.Millisecond
	stableReadings  = 4
	stableTimeout   = 10 * time.Second
)

// coldStarts measures the starts of functions, each in its own process.
type coldStarts struct {
	binary   string            // path of the binary of Sendonce
	baseline string            // path of the binary of ./baseline
	env      []string          // of the functions and the baseline
	pooled   []string          // env with PgBouncer in front of Postgres; nil = PgBouncer is not installed
	admin    string            // Authorization header of a caller that may call everything but event functions
	trigger  string            // Authorization header of a caller that may call event functions
	session  string            // Cookie header of the admin, logged in to the console
	tasks    []api.ClaimedTask // one for each start of the function report
}

// copyAsUnpacked copies a binary in large writes, as container engines do when they unpack an image, and returns the path of the
// copy. The kernel caches the output of a linker in single pages, from which a process starts more slowly.
func copyAsUnpacked(binary string) (_ string, err error) {
	from, err := os.Open(binary)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	path := binary + "-unpacked"
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	// The structs hide the type *os.File, so that io copies in writes of 32 KiB and not in the kernel.
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 32<<10))
	return path, err
}

// measure measures the starts of the functions in only; of all functions if only is empty.
func measure(ctx context.Context, stack *bench.Stack, runs int, only []string, progress io.Writer) (rows []row, err error) {
	baseline := stack.Machine.Binary + "-baseline"
	if err := sandbox.Compile(ctx, baseline, "github.com/sendonce/sendonce/scripts/bench/cold/baseline"); err != nil {
		return nil, err
	}
	if baseline, err = copyAsUnpacked(baseline); err != nil {
		return nil, err
	}
	c := &coldStarts{binary: stack.Machine.Binary, baseline: baseline, env: stack.Env}
	bouncer, bouncerErr := sandbox.StartPgBouncer(ctx, stack.Machine.URL())
	switch {
	case errors.Is(bouncerErr, sandbox.ErrNoPgBouncer):
		fmt.Fprintln(progress, bouncerErr)
	case bouncerErr != nil:
		return nil, bouncerErr
	default:
		defer func() { err = errors.Join(err, bouncer.Stop()) }()
		c.pooled = append(slices.Clone(c.env), "DATABASE_URL="+bouncer.URL(bench.Database), "SENDONCE_DATABASE_POOLER=true")
	}
	if err := c.prepare(ctx, stack, 2*runs); err != nil { // half of the tasks are for starts through PgBouncer
		return nil, fmt.Errorf("prepare the starts: %w", err)
	}
	for _, f := range functions.Catalogue() {
		if len(only) > 0 && !slices.Contains(only, f.Name) {
			continue
		}
		r, err := c.measureFunction(ctx, f.Name, runs)
		if err != nil {
			return rows, fmt.Errorf("start %s: %w", f.Name, err)
		}
		fmt.Fprintln(progress, r)
		rows = append(rows, r)
	}
	return rows, nil
}

// prepare creates two callers, the streams, and n claimed tasks for the first calls.
func (c *coldStarts) prepare(ctx context.Context, stack *bench.Stack, n int) (err error) {
	defer func() { err = errors.Join(err, stack.StopProcesses()) }()
	address, err := stack.Start(ctx, "")
	if err != nil {
		return err
	}
	if _, err := stack.StartTrigger(address); err != nil {
		return err
	}
	err = bench.WaitUntil(ctx, 20*time.Millisecond, "the trigger's streams", func() (bool, error) {
		_, err := stack.JS.Consumer(ctx, "ACCEPTED", "save-1-of-1")
		if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	builtinAdmin, err := bench.Dial(address)
	if err != nil {
		return err
	}
	defer builtinAdmin.Close()
	tokens := map[string]string{}
	for role, header := range map[string]*string{"admin": &c.admin, "trigger": &c.trigger} {
		created, err := builtinAdmin.Post("/api/v1/admin/callers", nil, fmt.Appendf(nil, `{"name":"cold-%s","roles":[%q]}`, role, role))
		if err != nil {
			return err
		}
		tokens[role] = bench.JSONString(created, "token")
		request := http.Request{Header: http.Header{}}
		request.SetBasicAuth("cold-"+role, tokens[role])
		*header = request.Header.Get("Authorization")
	}
	if c.session, err = logIn(ctx, address, "cold-admin", tokens["admin"]); err != nil {
		return err
	}
	// The caller that will report the tasks must also claim them.
	client := api.NewClient("http://"+address, "cold-admin", tokens["admin"])
	if _, err := client.SendBatch(ctx, slices.Repeat([]api.SendRequest{{PhoneNumber: "13800138000", Content: "cold"}}, n)); err != nil {
		return err
	}
	c.tasks, err = client.Claim(ctx, api.ClaimRequest{AppID: "cold", Limit: &n, LeaseSeconds: new(3600)})
	if err == nil && len(c.tasks) != n {
		err = fmt.Errorf("only %d of %d tasks were claimed", len(c.tasks), n)
	}
	return err
}

// logIn logs in to the console and returns the session cookie.
func logIn(ctx context.Context, address, name, password string) (string, error) {
	form := url.Values{"name": {name}, "password": {password}}
	r, err := http.NewRequestWithContext(ctx, "POST", "http://"+address+"/console/login", strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultTransport.RoundTrip(r) // without following the redirect
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if len(resp.Cookies()) == 0 {
		return "", fmt.Errorf("log in to the console: %s without a cookie", resp.Status)
	}
	return resp.Cookies()[0].Name + "=" + resp.Cookies()[0].Value, nil
}

// firstCall returns a call to the function. The function needs at least one query to return 2xx.
func (c *coldStarts) firstCall(function string, run int) (*http.Request, error) {
	method, path, body := "POST", "", ""
	switch function {
	case "submit":
		path, body = "/api/v1/sms/send", `{"phone_number":"13800138000","content":"cold"}`
	case "claim":
		method, path = "GET", "/api/v1/sms/tasks/pending?app_id=cold&limit=1"
	case "report":
		path, body = "/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"cold","claim_id":%d,"status":2}`, c.tasks[run].TaskID, c.tasks[run].ClaimID)
	case "subscribe":
		path, body = "/api/v1/subscribe/send", fmt.Sprintf(`{"template_id":"cold","template_type":"BOOKING_CONFIRM","business_type":"course_booking",
			"business_id":"%d","receiver_user_id":"1","receiver_openid":"cold","message_data":{"thing1":{"value":"Tea"}}}`, run)
	case "messages":
		path, body = "/api/v1/messages", fmt.Sprintf(`{"client_msg_id":"cold-%d","to":"msg.cold","data":1}`, run)
	case "stream":
		method, path = "GET", "/api/v1/stream/cold"
	case "webhooks":
		method, path = "GET", "/api/v1/webhooks/endpoints"
	case "admin":
		method, path = "GET", "/api/v1/admin/callers"
	case "console":
		method, path = "GET", "/console/callers"
	case "exporter":
		method, path = "GET", "/exporter/metrics"
	case "sweep", "relay", "deliver", "save", "wechat":
		path, body = "/events/"+function, `{}`
	default:
		return nil, errors.New("add its first call to this program")
	}
	r, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", c.admin)
	r.Header.Set("Cookie", c.session)
	if strings.HasPrefix(path, "/events/") {
		r.Header.Set("Authorization", c.trigger)
		for name, value := range map[string]string{"Specversion": "1.0", "Id": strconv.Itoa(run), "Source": "cold", "Type": "sendonce.tick." + function + ".v1"} {
			r.Header.Set("Ce-"+name, value)
		}
	}
	return r, nil
}

// measureFunction starts one function runs times. After each start it starts the baseline, and then, if PgBouncer is
// installed, the function again through PgBouncer.
func (c *coldStarts) measureFunction(ctx context.Context, function string, runs int) (row, error) {
	result := row{function: function}
	for run := range runs {
		r, err := c.firstCall(function, run)
		if err != nil {
			return result, err
		}
		took, resident, err := c.start(ctx, c.binary, c.env, function, r)
		if err != nil {
			return result, err
		}
		result.took, result.resident = append(result.took, took), max(result.resident, resident)

		baselineCall, err := http.NewRequest("GET", "http://baseline/", nil)
		if err != nil {
			return result, err
		}
		if took, _, err = c.start(ctx, c.baseline, c.env, "", baselineCall); err != nil {
			return result, fmt.Errorf("baseline: %w", err)
		}
		result.baseline = append(result.baseline, took)

		if c.pooled == nil {
			continue
		}
		if r, err = c.firstCall(function, runs+run); err != nil {
			return result, err
		}
		if took, _, err = c.start(ctx, c.binary, c.pooled, function, r); err != nil {
			return result, fmt.Errorf("through PgBouncer: %w", err)
		}
		result.pooled = append(result.pooled, took)
	}
	return result, nil
}

// start starts a process, makes its first call and kills it. It returns the time from before the fork until the response,
// and the resident memory once it is stable. The process inherits an open listener: the call waits there until the process
// accepts it.
func (c *coldStarts) start(ctx context.Context, binary string, env []string, function string, r *http.Request) (took time.Duration, resident int64, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	var log strings.Builder
	process := exec.CommandContext(ctx, binary)
	process.Env = append(slices.Clone(env), "FUNCTION_TARGET="+function, "LISTEN_FDS=1")
	process.ExtraFiles, process.Stderr = []*os.File{file}, &log
	startedAt := time.Now()
	if err := process.Start(); err != nil {
		return 0, 0, err
	}
	defer func() {
		_ = process.Process.Kill() // fails if the process has ended
		_ = process.Wait()         // fails if the process was killed
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, log.String())
		}
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(startedAt.Add(bench.CallTimeout)); err != nil {
		return 0, 0, err
	}
	if err := r.Write(conn); err != nil {
		return 0, 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), r)
	took = time.Since(startedAt)
	if err != nil {
		return 0, 0, err
	}
	if response.StatusCode/100 != 2 {
		body, _ := io.ReadAll(response.Body) // for the error only
		return 0, 0, fmt.Errorf("%s %s: %s %s", r.Method, r.URL.Path, response.Status, body)
	}
	resident, err = stableMemory(ctx, process.Process.Pid)
	return took, resident, err
}

// stableMemory waits until the resident memory of a process is stable, and returns the bytes.
func stableMemory(ctx context.Context, pid int) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, stableTimeout)
	defer cancel()
	tick := time.NewTicker(readingInterval)
	defer tick.Stop()
	var previous int64
	for equal := 0; ; {
		now, err := residentMemory(pid)
		if err != nil {
			return 0, err
		}
		if equal++; now != previous {
			equal = 1
		}
		if equal == stableReadings {
			return now, nil
		}
		previous = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, fmt.Errorf("its memory does not become stable: %w", ctx.Err())
		}
	}
}

// residentMemory returns the resident memory of a process in bytes.
func residentMemory(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("resident memory is read from Linux's /proc: %w", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	line, _, _ := strings.Cut(rest, "\n")
	kibibytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(line, "kB")), 10, 64)
	return kibibytes << 10, err
}
