package main

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
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

func deploy(t *testing.T) *deployment {
	t.Helper()
	d := &deployment{t: t, nats: sandbox.NewNATS(t), url: sandbox.NewDatabase(t), clients: map[string]*api.Client{}}
	bin := sandbox.Build(t, module+"functions", false)
	env := settings(d.url, "NATS_URL="+d.nats.URL(), "SENDONCE_SAFETY_TICK=1h")
	for _, name := range []string{"submit", "claim", "report", "sweep"} {
		p := sandbox.StartProcess(t, bin, append(slices.Clone(env), "FUNCTION_TARGET="+name))
		at := address(t, p)
		d.clients[name] = api.NewClient(at, "admin", "secret")
		if name == "sweep" {
			d.sweep = p
			env = append(env, "SENDONCE_FUNCTIONS_URL="+at)
		}
	}
	d.trigger = sandbox.StartProcess(t, bin, env, "trigger")
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

func TestAForgedEventIsNotLetIn(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, password := range []string{"", "wrong"} {
		forger := &server{t: t, url: s.url, user: "admin", password: password}
		got := forger.do("POST", "/events/sweep", `{}`, "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "test", "Ce-Type", "sendonce.tick.sweep.v1")
		require.Equal(t, 401, got.status, fmt.Sprint(got.text))
	}
}
