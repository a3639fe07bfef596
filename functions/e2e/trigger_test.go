package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// deployment is a NATS server, a trigger, and every function as a process of
// its own on one database.
type deployment struct {
	t       *testing.T
	nats    *sandbox.NATS
	url     string // of the database
	clients map[string]*api.Client
	sweep   *sandbox.Process
	trigger *sandbox.Process
}

// deploy starts it with more settings than those it needs.
func deploy(t *testing.T, more ...string) *deployment {
	t.Helper()
	d := &deployment{t: t, nats: newNATS(t), url: sandbox.NewDatabase(t), clients: map[string]*api.Client{}}
	bin := binary(t)
	env := settings(d.url, append(more, "NATS_URL="+d.nats.URL(), "SENDONCE_SAFETY_TICK=1h")...)
	for _, name := range []string{"submit", "claim", "report", "sweep"} {
		p := startProcess(t, bin, append(slices.Clone(env), "FUNCTION_TARGET="+name))
		at := address(t, p)
		d.clients[name] = api.NewClient(at, "admin", "secret")
		if name == "sweep" {
			d.sweep = p
			env = append(env, "SENDONCE_FUNCTIONS_URL="+at)
		}
	}
	d.trigger = startProcess(t, bin, env, "trigger")
	require.NoError(t, d.trigger.WaitFor(t.Context(), `"triggering"`))
	return d
}

func (d *deployment) submit(change ...func(*api.SendRequest)) string {
	d.t.Helper()
	req := api.SendRequest{PhoneNumber: "13800138000", Content: "hi", IdempotencyKey: api.NewKey()}
	for _, c := range change {
		c(&req)
	}
	sent, err := d.clients["submit"].Send(d.t.Context(), req)
	require.NoError(d.t, err)
	return sent.TaskID
}

func (d *deployment) claim(wait int) []api.ClaimedTask {
	d.t.Helper()
	tasks, err := d.clients["claim"].Claim(d.t.Context(), api.ClaimRequest{AppID: "app", Wait: &wait})
	require.NoError(d.t, err)
	return tasks
}

func TestAWaitingClaimHearsOfATaskSubmittedInAnotherProcess(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	looker := (&server{t: t}).connect(d.url)
	require.Empty(t, d.claim(0))
	const rounds = 5
	took := make([]time.Duration, 0, rounds)
	for range rounds {
		before := looker.lastStatement()
		woken := make(chan []api.ClaimedTask, 1)
		go func() {
			wait := 30
			tasks, _ := d.clients["claim"].Claim(context.WithoutCancel(t.Context()), api.ClaimRequest{AppID: "app", Wait: &wait})
			woken <- tasks
		}()
		looker.untilWaiting(before)
		start := time.Now()
		id := d.submit()
		tasks := <-woken
		took = append(took, time.Since(start))
		require.Len(t, tasks, 1)
		require.Equal(t, id, tasks[0].TaskID)
	}
	slices.Sort(took)
	t.Logf("submit to claimed: median %v, worst %v", took[rounds/2], took[rounds-1])
}

func TestAScheduleWakesSweepWhenALeaseOrASendTimeComesDue(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	soon := time.Now().Add(2 * time.Second)
	scheduled := d.submit(func(r *api.SendRequest) { r.SendAt = &soon })
	tasks := d.claim(30)
	require.Len(t, tasks, 1, "nothing but the schedule could promote it: the claim looked before it was due")
	require.Equal(t, scheduled, tasks[0].TaskID)
	require.NoError(t, d.sweep.WaitFor(t.Context(), `"event_type":"sendonce.tick.sweep.v1"`))
}

func TestWithNATSAwaySubmitsAndClaimsGoOn(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	require.NoError(t, d.nats.Stop())
	id := d.submit()
	tasks := d.claim(0)
	require.Len(t, tasks, 1)
	require.Equal(t, id, tasks[0].TaskID)
	status := 2
	_, err := d.clients["report"].Report(t.Context(), api.ReportRequest{TaskID: id, AppID: "app", ClaimID: tasks[0].ClaimID, Status: &status})
	require.NoError(t, err)
	got, err := d.clients["submit"].Task(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, "succeeded", got.State)
}

func TestWithoutATriggerThePollersKeepTheJobGoing(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	require.NoError(t, d.trigger.Kill())
	id := d.submit()
	require.Len(t, d.claim(0), 1)
	(&server{t: t}).connect(d.url).exec(`update task_live set due_at = now() - interval '1 minute'`)
	again := d.claim(0)
	require.Len(t, again, 1, "a claim recovers the zombie")
	require.Equal(t, id, again[0].TaskID)
	require.Equal(t, 1, again[0].RetryCount)
}

func TestATriggerThatIsToldToEndEndsInPeace(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	code, err := d.trigger.Terminate(30 * time.Second)
	require.NoError(t, err)
	require.Zero(t, code, d.trigger.Output())
}

// snapshotTables is every row of every table.
func snapshotTables(s *server) map[string]string {
	rows, err := s.owner.Query(s.t.Context(), `select format('%I', tablename) from pg_tables where schemaname = 'public'`)
	require.NoError(s.t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(s.t, err)
	require.NotEmpty(s.t, tables)
	all := map[string]string{}
	for _, table := range tables {
		all[table] = s.text(`select coalesce(string_agg(r::text, e'\n' order by r::text), '') from ` + table + ` r`)
	}
	return all
}

func TestForgedEventsAreNotLetInAndChangeNothing(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	process := startProcess(t, binary(t), settings(url, allowLoopback, "NATS_URL="+newNATS(t).URL()))
	s := (&server{t: t, url: address(t, process), user: "admin", password: "secret"}).connect(url)
	shop := newReceiver(t, nil)
	at, _ := addEndpoint(s, fmt.Sprintf(`{"url":%q}`, shop.URL))
	// Without a trigger all of these wait for someone who calls.
	insertDelivery(s, at[len(endpoints)+1:], task.NewID())
	id := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).data("task_id")
	require.Len(t, s.get("/api/v1/sms/tasks/pending?app_id=app").list(), 1)
	s.exec(`update task_live set due_at = now() - interval '1 minute'`)
	require.Equal(t, 200, s.post(post, `{"client_msg_id":"k","to":"msg.orders.paid","data":1}`).status)

	type forger struct {
		name, password string // of nobody when both are empty
		status         int
	}
	forgers := []forger{{"", "", 401}, {"admin", "", 401}, {"admin", "wrong", 401}, {"nobody", "secret", 401}}
	for _, role := range []string{"submitter", "sender", "receiver"} {
		caller := s.caller(role, role)
		forgers = append(forgers, forger{caller.user, caller.password, 403}, forger{caller.user, "wrong", 401})
	}
	carrier := s.caller("carrier", "trigger")
	before := snapshotTables(s)
	functions := []string{"deliver", "relay", "sweep"}
	for _, f := range functions {
		for _, who := range forgers {
			for _, kind := range []string{"sendonce.tick." + f + ".v1", "sendonce.task.succeeded.v1"} {
				req, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/events/"+f, strings.NewReader(`{}`))
				require.NoError(t, err)
				for name, value := range map[string]string{"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "/sendonce",
					"Ce-Type": kind, "Ce-Subject": fmt.Sprint(id)} {
					req.Header.Set(name, value)
				}
				if who.name+who.password != "" {
					req.SetBasicAuth(who.name, who.password)
				}
				res, err := http.DefaultClient.Do(req)
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
				require.Equal(t, who.status, res.StatusCode, "%s to %s as %+v", kind, f, who)
			}
		}
	}
	require.Equal(t, before, snapshotTables(s))
	require.Zero(t, shop.got())
	for _, f := range functions {
		require.Equal(t, 204, carrier.tick(f).status)
		now := snapshotTables(s)
		require.NotEqual(t, before, now, "there was something to do for %s", f)
		before = now
	}
}
