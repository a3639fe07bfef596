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

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// startTaskFunctions starts the functions that a task needs, each as a process of its
// own, and a trigger for sweep with a long safety tick.
func startTaskFunctions(t *testing.T, env ...string) *cluster.Cluster {
	t.Helper()
	c := cluster.New(t, append(env, "SENDONCE_SAFETY_TICK=1h")...)
	c.StartFunctions("submit", "claim", "report", "sweep")
	require.NoError(t, c.StartTrigger(c.Address("sweep")).WaitFor(t.Context(), `"triggering"`))
	return c
}

func TestWaitingClaimWakesFromAnotherProcess(t *testing.T) {
	t.Parallel()
	d := startTaskFunctions(t)
	require.Empty(t, d.Claim(0))
	const rounds = 5
	took := make([]time.Duration, 0, rounds)
	for range rounds {
		before := d.Admin.LastStatement()
		woken := make(chan []api.ClaimedTask, 1)
		go func() {
			wait := 30
			tasks, _ := d.API("claim").Claim(context.WithoutCancel(t.Context()), api.ClaimRequest{AppID: "app", Wait: &wait})
			woken <- tasks
		}()
		d.Admin.UntilWaiting(before)
		start := time.Now()
		id := d.Submit()
		tasks := <-woken
		took = append(took, time.Since(start))
		require.Len(t, tasks, 1)
		require.Equal(t, id, tasks[0].TaskID)
	}
	slices.Sort(took)
	t.Logf("submit to claimed: median %v, worst %v", took[rounds/2], took[rounds-1])
}

func TestScheduleWakesSweepWhenDue(t *testing.T) {
	t.Parallel()
	d := startTaskFunctions(t)
	soon := time.Now().Add(2 * time.Second)
	scheduled := d.Submit(func(r *api.SendRequest) { r.SendAt = &soon })
	tasks := d.Claim(30)
	require.Len(t, tasks, 1, "nothing but the schedule could promote it: the claim looked before it was due")
	require.Equal(t, scheduled, tasks[0].TaskID)
	require.NoError(t, d.Process("sweep").WaitFor(t.Context(), `"event_type":"sendonce.tick.sweep.v1"`))
}

func TestSubmitAndClaimWorkWithoutNATS(t *testing.T) {
	t.Parallel()
	d := startTaskFunctions(t)
	require.NoError(t, d.NATS.Stop())
	id := d.Submit()
	tasks := d.Claim(0)
	require.Len(t, tasks, 1)
	require.Equal(t, id, tasks[0].TaskID)
	status := 2
	_, err := d.API("report").Report(t.Context(), api.ReportRequest{TaskID: id, AppID: "app", ClaimID: tasks[0].ClaimID, Status: &status})
	require.NoError(t, err)
	got, err := d.API("submit").Task(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, "succeeded", got.State)
}

func TestPollersWorkWithoutTrigger(t *testing.T) {
	t.Parallel()
	d := startTaskFunctions(t)
	require.NoError(t, d.Process("trigger").Kill())
	id := d.Submit()
	require.Len(t, d.Claim(0), 1)
	d.Admin.Exec(`update task_live set due_at = now() - interval '1 minute'`)
	again := d.Claim(0)
	require.Len(t, again, 1, "a claim recovers the zombie")
	require.Equal(t, id, again[0].TaskID)
	require.Equal(t, 1, again[0].RetryCount)
}

func TestTriggerEndsGracefully(t *testing.T) {
	t.Parallel()
	d := startTaskFunctions(t)
	code, err := d.Process("trigger").Terminate(30 * time.Second)
	require.NoError(t, err)
	require.Zero(t, code, d.Process("trigger").Output())
}

// snapshotTables is every row of every table.
func snapshotTables(s *cluster.Client) map[string]string {
	rows, err := s.Owner.Query(s.T.Context(), `select format('%I', tablename) from pg_tables where schemaname = 'public'`)
	require.NoError(s.T, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(s.T, err)
	require.NotEmpty(s.T, tables)
	all := map[string]string{}
	for _, table := range tables {
		all[table] = s.QueryText(`select coalesce(string_agg(r::text, e'\n' order by r::text), '') from ` + table + ` r`)
	}
	return all
}

func TestForgedEventsAreRefused(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	process := cluster.StartProcess(t, cluster.Binary(t), cluster.Settings(url, cluster.AllowLoopback, "NATS_URL="+cluster.NewNATS(t).URL()))
	s := cluster.NewClient(t, cluster.Address(t, process)).Connect(url)
	shop := cluster.NewReceiver(t, nil)
	at, _ := cluster.RegisterEndpoint(s, fmt.Sprintf(`{"url":%q}`, shop.URL))
	// Without a trigger all of these wait for someone who calls.
	cluster.InsertDelivery(s, at[len(cluster.EndpointsPath)+1:], task.NewID())
	id := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).Data("task_id")
	require.Len(t, s.Get("/api/v1/sms/tasks/pending?app_id=app").List(), 1)
	s.Exec(`update task_live set due_at = now() - interval '1 minute'`)
	require.Equal(t, 200, s.Post(cluster.MessagesPath, `{"client_msg_id":"k","to":"msg.orders.paid","data":1}`).Status)

	type forger struct {
		name, password string // of nobody when both are empty
		status         int
	}
	forgers := []forger{{"", "", 401}, {"admin", "", 401}, {"admin", "wrong", 401}, {"nobody", "secret", 401}}
	for _, role := range []string{"submitter", "sender", "receiver"} {
		caller := s.NewCaller(role, role)
		forgers = append(forgers, forger{caller.User, caller.Password, 403}, forger{caller.User, "wrong", 401})
	}
	carrier := s.NewCaller("carrier", "trigger")
	before := snapshotTables(s)
	functions := []string{"deliver", "relay", "sweep"}
	for _, f := range functions {
		for _, who := range forgers {
			for _, kind := range []string{"sendonce.tick." + f + ".v1", "sendonce.task.succeeded.v1"} {
				req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/events/"+f, strings.NewReader(`{}`))
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
	require.Zero(t, shop.Calls())
	for _, f := range functions {
		require.Equal(t, 204, carrier.Tick(f).Status)
		now := snapshotTables(s)
		require.NotEqual(t, before, now, "there was something to do for %s", f)
		before = now
	}
}
