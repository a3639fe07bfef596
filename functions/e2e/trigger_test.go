package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// Each function is a process of its own. The safety tick is an hour away, so only wake-ups and schedules can promote tasks.
func TestTasksInSeparateProcesses(t *testing.T) {
	t.Parallel()
	d := cluster.New(t, "SENDONCE_SAFETY_TICK=1h", "RETRY_BACKOFF=slow=3s,3s")
	d.StartFunctions("submit", "claim", "report", "sweep")
	trigger := d.StartTrigger(d.Address("sweep"))
	require.NoError(t, trigger.WaitFor(t.Context(), `"triggering"`))
	toSlow := func(r *api.SendRequest) { r.Queue = "slow" }
	claimSlow := func(wait, lease int) []api.ClaimedTask {
		tasks, err := d.API("claim").Claim(context.WithoutCancel(t.Context()), api.ClaimRequest{AppID: "app", Queue: "slow", Wait: &wait, LeaseSeconds: &lease})
		require.NoError(t, err)
		return tasks
	}

	// A claim whose lease expires, for the end of the test.
	silent := d.Submit(toSlow)
	expiring := claimSlow(0, 10)
	require.Len(t, expiring, 1)
	require.Equal(t, silent, expiring[0].TaskID)

	require.Empty(t, d.Claim(0))
	for range 2 {
		before := d.Admin.LastStatement()
		woken := make(chan []api.ClaimedTask, 1)
		go func() {
			wait := 30
			tasks, _ := d.API("claim").Claim(context.WithoutCancel(t.Context()), api.ClaimRequest{AppID: "app", Wait: &wait})
			woken <- tasks
		}()
		d.Admin.UntilWaiting(before)
		id := d.Submit()
		tasks := <-woken
		require.Len(t, tasks, 1, "a submit in one process wakes the claim in another")
		require.Equal(t, id, tasks[0].TaskID)
	}

	soon := time.Now().Add(2 * time.Second)
	scheduled := d.Submit(func(r *api.SendRequest) { r.SendAt = &soon })
	tasks := d.Claim(30)
	require.Len(t, tasks, 1, "a schedule wakes sweep, and sweep the claim")
	require.Equal(t, scheduled, tasks[0].TaskID)
	require.NoError(t, d.Process("sweep").WaitFor(t.Context(), `"event_type":"sendonce.tick.sweep.v1"`))

	id := d.Submit(toSlow)
	claimed := claimSlow(0, 600)
	require.Len(t, claimed, 1)
	failed, reported := 3, time.Now()
	response, err := d.API("report").Report(t.Context(), api.ReportRequest{
		TaskID: id, AppID: "app", ClaimID: claimed[0].ClaimID, Status: &failed, ShouldRetry: true, ErrorMessage: "busy",
	})
	require.NoError(t, err)
	require.Equal(t, []any{"scheduled", 0, 1}, []any{response.State, response.Status, response.RetryCount})
	require.Empty(t, claimSlow(0, 600), "the task waits for its backoff")
	again := claimSlow(30, 600)
	require.Len(t, again, 1, "claimed again after its backoff")
	require.Equal(t, []any{id, 1}, []any{again[0].TaskID, again[0].RetryCount})
	require.GreaterOrEqual(t, time.Since(reported), 2900*time.Millisecond)

	again = claimSlow(30, 600)
	require.Len(t, again, 1, "claimed again after its lease and its backoff")
	require.Equal(t, []any{silent, 1}, []any{again[0].TaskID, again[0].RetryCount})
	require.GreaterOrEqual(t, time.Since(expiring[0].LeaseUntil), 2900*time.Millisecond)

	code, err := trigger.Terminate(30 * time.Second)
	require.NoError(t, err)
	require.Zero(t, code, trigger.Output())
	id = d.Submit()
	require.Len(t, d.Claim(0), 1)
	d.Admin.Exec(`update task_live set due_at = now() - interval '1 minute' where id = $1`, id)
	again = d.Claim(0)
	require.Len(t, again, 1, "without a trigger, a claim recovers the task of an expired lease")
	require.Equal(t, []any{id, 1}, []any{again[0].TaskID, again[0].RetryCount})

	require.NoError(t, d.NATS.Stop())
	id = d.Submit()
	tasks = d.Claim(0)
	require.Len(t, tasks, 1, "submit and claim need no NATS")
	succeeded := 2
	_, err = d.API("report").Report(t.Context(), api.ReportRequest{TaskID: id, AppID: "app", ClaimID: tasks[0].ClaimID, Status: &succeeded})
	require.NoError(t, err)
	got, err := d.API("submit").Task(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, "succeeded", got.State)
}

// snapshotTables returns every row of every table.
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
	s, _ := cluster.StartServer(t, sandbox.NewDatabase(t), "NATS_URL="+cluster.NewNATS(t).URL())
	shop := cluster.NewReceiver(t, nil)
	at, _ := cluster.RegisterEndpoint(s, fmt.Sprintf(`{"url":%q}`, shop.URL))
	// There is no trigger, so the delivery, the expired lease and the message below wait for a call of a function.
	cluster.InsertDelivery(s, at[len(cluster.EndpointsPath)+1:], task.NewID())
	id := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).Data("task_id")
	require.Len(t, s.Get("/api/v1/sms/tasks/pending?app_id=app").List(), 1)
	s.Exec(`update task_live set due_at = now() - interval '1 minute'`)
	s.Post(cluster.MessagesPath, `{"client_msg_id":"k","to":"msg.orders.paid","data":1}`).RequireOK()

	type forger struct {
		name, password string // both empty = no credentials
		status         int
	}
	forgers := []forger{{"", "", 401}, {"admin", "", 401}, {"admin", "wrong", 401}, {"nobody", "secret", 401}}
	for _, role := range []string{"submitter", "sender", "receiver"} {
		caller := s.NewCaller(role, role)
		forgers = append(forgers, forger{caller.User, caller.Password, 403}, forger{caller.User, "wrong", 401})
	}
	trigger := s.NewCaller("trigger", "trigger")
	before := snapshotTables(s)
	functions := []string{"deliver", "relay", "sweep"}
	for _, f := range functions {
		for _, who := range forgers {
			for _, kind := range []string{"sendonce.tick." + f + ".v1", "sendonce.task.succeeded.v1"} {
				as := &cluster.Client{T: t, URL: s.URL, User: who.name, Password: who.password}
				req := as.Request(t.Context(), "POST", "/events/"+f, `{}`, "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/sendonce",
					"Ce-Type", kind, "Ce-Subject", fmt.Sprint(id))
				if who.name+who.password == "" {
					req.Header.Del("Authorization")
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
		require.Equal(t, 204, trigger.Tick(f).Status)
		now := snapshotTables(s)
		require.NotEqual(t, before, now, "there was something to do for %s", f)
		before = now
	}
}
