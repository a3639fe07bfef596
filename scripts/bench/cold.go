package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	restEvery = 50 * time.Millisecond
	restLooks = 4 // as many in a row that see the same memory
	restLimit = 10 * time.Second
)

// coldStarts starts functions, one process each.
type coldStarts struct {
	binary string
	floor  string // the binary of ./floor
	env    []string
	pooled []string // env with PgBouncer on the way to Postgres; nil where there is none
	anyone string   // header line of a caller that may do everything
	events string   // of one that may hand over events
	tasks  []api.ClaimedTask
}

// unpacked copies a binary as container engines unpack one from an image. What a
// linker has written lies in memory in single pages, from where a process starts
// slower than any that is deployed does.
func unpacked(binary string) (_ string, err error) {
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
	// Files of their own type would be copied by the kernel, in pieces of its choice.
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 32<<10))
	return path, err
}

// measureCold starts every function by itself, again and again.
func (s *coldSummary) measureCold(ctx context.Context, o options, binary, database string) (err error) {
	conn, broker, end, err := ground(ctx, database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	// WeChat is not called as long as there is nothing to send.
	env := append(settings(database), "NATS_URL="+broker.URL(), "WECHAT_APP_ID=cold", "WECHAT_APP_SECRET=cold")
	floor := binary + "-floor"
	if err := sandbox.Compile(ctx, "github.com/sendonce/sendonce/scripts/bench/floor", floor, false); err != nil {
		return err
	}
	if floor, err = unpacked(floor); err != nil {
		return err
	}
	c := &coldStarts{binary: binary, floor: floor, env: env}
	bouncer, missing := sandbox.StartPgBouncer(ctx, database)
	switch {
	case errors.Is(missing, sandbox.ErrNoPgBouncer):
		fmt.Fprintln(s.progress, missing)
	case missing != nil:
		return missing
	default:
		defer func() { err = errors.Join(err, bouncer.Stop()) }()
		c.pooled = append(slices.Clone(env), "DATABASE_URL="+bouncer.URL("bench"), "SENDONCE_DATABASE_POOLER=true")
	}
	if err := c.furnish(ctx, o, &events{binary: binary, env: env, conn: conn, nats: broker}); err != nil {
		return fmt.Errorf("before the first start: %w", err)
	}
	functions, err := c.catalogue(ctx)
	if err != nil {
		return err
	}
	for _, function := range functions {
		if len(o.functions) > 0 && !slices.Contains(o.functions, function) {
			continue
		}
		row, err := c.measure(ctx, function, o.runs)
		if err != nil {
			return fmt.Errorf("start %s: %w", function, err)
		}
		s.add(row)
	}
	return nil
}

// furnish makes what the first calls need: callers that are rows, the stream of
// accepted messages, and a claimed task for each report.
func (c *coldStarts) furnish(ctx context.Context, o options, e *events) (err error) {
	defer func() { err = errors.Join(err, e.drain()) }()
	address, err := e.start(ctx, "")
	if err != nil {
		return err
	}
	nc, err := nats.Connect(e.nats.URL())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	carrier := &twoPhase{events: events{binary: e.binary, env: e.env}, o: options{shards: 1}, js: js}
	if _, err := carrier.trigger(ctx, address); err != nil {
		return errors.Join(err, carrier.drain())
	}
	if err := carrier.drain(); err != nil {
		return err
	}
	admin, err := dial(address)
	if err != nil {
		return err
	}
	defer admin.close()
	tokens := map[string]string{}
	for role, header := range map[string]*string{"admin": &c.anyone, "trigger": &c.events} {
		made, err := admin.post("/api/v1/admin/callers", nil, fmt.Appendf(nil, `{"name":"cold-%s","roles":[%q]}`, role, role))
		if err != nil {
			return err
		}
		tokens[role] = text(made, "token")
		request := http.Request{Header: http.Header{}}
		request.SetBasicAuth("cold-"+role, tokens[role])
		*header = request.Header.Get("Authorization")
	}
	n := 2 * o.runs // directly and through PgBouncer
	// The caller that reports a task must be the one that claimed it.
	client := api.NewClient("http://"+address, "cold-admin", tokens["admin"])
	if _, err := client.SendBatch(ctx, slices.Repeat([]api.SendRequest{{PhoneNumber: "13800138000", Content: "cold"}}, n)); err != nil {
		return err
	}
	hour := 3600
	c.tasks, err = client.Claim(ctx, api.ClaimRequest{AppID: "cold", Limit: &n, LeaseSeconds: &hour})
	if err == nil && len(c.tasks) != n {
		err = fmt.Errorf("%d tasks were claimed of %d", len(c.tasks), n)
	}
	return err
}

// catalogue asks the binary what functions it has: it lists them to who names
// none of them.
func (c *coldStarts) catalogue(ctx context.Context) ([]string, error) {
	wrong := exec.CommandContext(ctx, c.binary)
	wrong.Env = append(slices.Clone(c.env), "FUNCTION_TARGET=none")
	out, _ := wrong.CombinedOutput() // it must fail
	_, list, found := strings.Cut(string(out), "names no function; there are: ")
	if !found {
		return nil, fmt.Errorf("the binary does not list its functions:\n%s", out)
	}
	list, _, _ = strings.Cut(list, "\n")
	return strings.Split(list, ", "), nil
}

// firstCall is a call of the function that is answered 2xx only after the
// database was asked: if for nothing else, for the caller.
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
	case "sweep", "relay", "deliver", "save", "wechat":
		path, body = "/events/"+function, `{}`
	default:
		return nil, errors.New("its first call is not known here: say what it is")
	}
	r, err := http.NewRequest(method, "http://cold"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", c.anyone)
	if strings.HasPrefix(path, "/events/") {
		r.Header.Set("Authorization", c.events)
		for name, value := range map[string]string{"Specversion": "1.0", "Id": strconv.Itoa(run), "Source": "cold", "Type": "sendonce.tick." + function + ".v1"} {
			r.Header.Set("Ce-"+name, value)
		}
	}
	return r, nil
}

// measure starts one function so many times.
func (c *coldStarts) measure(ctx context.Context, function string, runs int) (coldRow, error) {
	row := coldRow{function: function}
	for run := range runs {
		r, err := c.firstCall(function, run)
		if err != nil {
			return row, err
		}
		took, resident, err := c.start(ctx, c.binary, c.env, function, r)
		if err != nil {
			return row, err
		}
		row.took = append(row.took, took)
		row.resident = max(row.resident, resident)

		least, err := http.NewRequest("GET", "http://floor/", nil)
		if err != nil {
			return row, err
		}
		if took, _, err = c.start(ctx, c.floor, c.env, "", least); err != nil {
			return row, fmt.Errorf("floor: %w", err)
		}
		row.floor = append(row.floor, took)

		if c.pooled == nil {
			continue
		}
		if r, err = c.firstCall(function, runs+run); err != nil {
			return row, err
		}
		if took, _, err = c.start(ctx, c.binary, c.pooled, function, r); err != nil {
			return row, fmt.Errorf("through PgBouncer: %w", err)
		}
		row.pooled = append(row.pooled, took)
	}
	slices.Sort(row.took)
	slices.Sort(row.floor)
	slices.Sort(row.pooled)
	return row, nil
}

// start gives the time from before the fork until the first call is answered, and
// the memory once the process is at rest. The call waits on a listener that the
// process is handed, so no time passes between its being ready and being asked.
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
	began := time.Now()
	if err := process.Start(); err != nil {
		return 0, 0, err
	}
	defer func() {
		_ = process.Process.Kill() // it may have ended
		_ = process.Wait()         // it was killed
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, log.String())
		}
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(began.Add(callTimeout)); err != nil {
		return 0, 0, err
	}
	if err := r.Write(conn); err != nil {
		return 0, 0, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), r)
	took = time.Since(began)
	if err != nil {
		return 0, 0, err
	}
	if answer.StatusCode/100 != 2 {
		body, _ := io.ReadAll(answer.Body) // only told
		return 0, 0, fmt.Errorf("%s %s: %s %s", r.Method, r.URL.Path, answer.Status, body)
	}
	resident, err = atRest(ctx, process.Process.Pid)
	return took, resident, err
}

// atRest waits until the resident memory of a process does not change any more
// and gives it, in bytes.
func atRest(ctx context.Context, pid int) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	look := time.NewTicker(restEvery)
	defer look.Stop()
	var before int64
	for same := 0; ; {
		now, err := resident(pid)
		if err != nil {
			return 0, err
		}
		if same++; now != before {
			same = 1
		}
		if same == restLooks {
			return now, nil
		}
		before = now
		select {
		case <-look.C:
		case <-ctx.Done():
			return 0, fmt.Errorf("its memory does not come to rest: %w", ctx.Err())
		}
	}
}

func resident(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("resident memory is read from Linux's /proc: %w", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	line, _, _ := strings.Cut(rest, "\n")
	kibibytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(line, "kB")), 10, 64)
	return kibibytes << 10, err
}
