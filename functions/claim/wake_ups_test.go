package claim_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

// makeTasksDue makes every scheduled task due.
func makeTasksDue(s *cluster.Client) {
	s.Exec(`update task_live set due_at = now() - interval '1 second'`)
}

// subscribeTo subscribes to a subject. The subscription has the messages that are published from now on.
func subscribeTo(t *testing.T, url, subject string) *nats.Subscription {
	t.Helper()
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	wakeUps, err := nc.SubscribeSync(subject)
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return wakeUps
}

// awaitResponse returns the response to a waiting claim once the claim is woken.
func awaitResponse(s *cluster.Client, waiting <-chan cluster.Reply) cluster.Reply {
	s.T.Helper()
	return cluster.Within(s.T, cluster.WaitLimit, waiting, "the response to the waiting claim")
}

// A claim promotes the due tasks of all queues. It wakes polls for these tasks even if the claim itself then fails.
func TestFailedClaimStillWakesPolls(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.ScheduleInAnHour("default", "other")
	waiting := s.StartWaiting("/api/v1/sms/tasks/pending?app_id=w&queue=other&wait=30")
	makeTasksDue(s)
	s.Exec(`revoke insert on send_logs from sendonce_hot`)
	require.Equal(t, 500, s.Get("/api/v1/sms/tasks/pending?app_id=x").Status)
	s.Exec(`grant insert on send_logs to sendonce_hot`)
	response := awaitResponse(s, waiting)
	if response.Status == 500 { // the poll was woken before the grant
		response = s.Get("/api/v1/sms/tasks/pending?app_id=w&queue=other")
	}
	require.Len(t, response.List(), 1)
}

func TestWokenPollThatFailsWakesAnother(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.Exec(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`)
	s.Exec(`create trigger refuse before insert on send_logs for each row when (new.app_id = 'fails') execute function refuse()`)
	const poll = "/api/v1/sms/tasks/pending?wait=30&app_id="
	failing := s.StartWaiting(poll + "fails") // the oldest, which is woken first
	waiting := s.StartWaitingToo(poll + "w")
	s.SubmitTo(task.DefaultQueue)
	require.Equal(t, 500, awaitResponse(s, failing).Status)
	require.Len(t, awaitResponse(s, waiting).List(), 1)
}

// memoryInUse matches the metric of an instance that uses at least 9 MB and less than 10 MB.
var memoryInUse = regexp.MustCompile(`(?m)^sendonce_memory_budget_used_bytes 9[0-9.]{6}`)

// The caller of the oldest poll also sends a request whose body does not end. This request uses up the caller's share of memory.
func TestWokenPollWithoutMemoryWakesAnother(t *testing.T) {
	t.Parallel()
	s := cluster.ServeOn(t, sandbox.NewDatabase(t), func(c *settings.Config) { c.MemoryMB = 20 })
	full := s.NewCaller("full", "sender")
	failing := full.StartWaiting("/api/v1/sms/tasks/pending?app_id=full&wait=30&limit=1000") // the oldest, which is woken first
	body, rest := io.Pipe()
	r := full.Request(t.Context(), "POST", "/api/v1/sms/report/batch", "", "Content-Type", "application/json")
	r.Body, r.GetBody, r.ContentLength = body, nil, 4608<<10
	go func() {
		if res, err := http.DefaultClient.Do(r); err == nil {
			res.Body.Close()
		}
	}()
	t.Cleanup(func() { rest.CloseWithError(io.ErrUnexpectedEOF) })
	cluster.Eventually(t, func() bool {
		return memoryInUse.MatchString(cluster.Metrics(t, s.URL))
	}, "the body has reserved its memory")
	waiting := s.StartWaitingToo("/api/v1/sms/tasks/pending?app_id=w&wait=30")
	s.SubmitTo(task.DefaultQueue)
	select {
	case response := <-waiting:
		require.Len(t, response.List(), 1)
	case <-failing:
		t.Error("the poll without memory kept the wake-up until it failed")
	}
}

func TestSweepWithLostCommitResponseWakesPolls(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	_, functions := cluster.NewEnv(t, proxy.URL())
	s := cluster.ServeHandler(t, functions).Connect(url)
	s.ScheduleInAnHour("default")
	waiting := s.StartWaiting("/api/v1/sms/tasks/pending?app_id=w&wait=30")
	makeTasksDue(s)
	proxy.LoseResponse(sandbox.Containing("update task_live"))
	require.Equal(t, 503, s.Tick("sweep").Status)
	require.Len(t, awaitResponse(s, waiting).List(), 1)
}

func TestFailedClaimWakesPollsOfOtherProcesses(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy, nats := sandbox.NewProxy(t, url), cluster.WithNATS(t, cluster.NewNATS(t).URL())
	failing, s := cluster.ServeOn(t, proxy.URL(), nats), cluster.ServeOn(t, url, nats)
	require.Empty(t, failing.Get("/api/v1/sms/tasks/pending?app_id=x&wait=1").List(), "this process is subscribed to wake-ups from now on")
	s.ScheduleInAnHour("default")
	waiting := s.StartWaiting("/api/v1/sms/tasks/pending?app_id=w&wait=30")
	makeTasksDue(s)
	proxy.LoseResponse(sandbox.Containing("update task_live"))
	require.Equal(t, 503, failing.Get("/api/v1/sms/tasks/pending?app_id=x&wait=30").Status)
	require.Len(t, awaitResponse(s, waiting).List(), 1)
}

func TestClaimWithoutWaitConsumesNoWakeUp(t *testing.T) {
	t.Parallel()
	url, broker := sandbox.NewDatabase(t), cluster.NewNATS(t)
	env, h := cluster.NewEnv(t, url, cluster.WithNATS(t, broker.URL()))
	s := cluster.ServeHandler(t, h).Connect(url)
	wakeUps := subscribeTo(t, broker.URL(), bus.QueueSubject("default"))
	require.Empty(t, s.Get("/api/v1/sms/tasks/pending?app_id=a&wait=1").List(), "this process is subscribed to wake-ups from now on")
	release := storetest.HoldLock(t, storetest.ConnectAsOwner(t, url), `lock table task_live`)
	response := make(chan cluster.Reply, 1)
	go func() { response <- s.Get("/api/v1/sms/tasks/pending?app_id=a") }()
	cluster.Eventually(t, func() bool { return storetest.IsWaiting(t, s.Owner) })
	env.WakeClaims("default", 1) // no claim of this process takes the wake-up, so it is published
	_, err := wakeUps.NextMsg(cluster.WaitLimit)
	require.NoError(t, err)
	release()
	<-response
}

// The tasks are submitted to a server without NATS, so nobody publishes a wake-up. When the server of the poll connects to NATS, the
// poll claims again, because it may have missed wake-ups.
func TestPollClaimsAgainAfterNATSConnects(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	withoutNATS := cluster.ServeOn(t, url)
	broker := sandbox.NewNATSServer(t)
	broker.Kill()
	s := cluster.ServeOn(t, url, cluster.WithNATS(t, broker.URL()))

	for _, when := range []string{"the server subscribes for the first time", "NATS comes back"} {
		waiting := s.StartWaiting("/api/v1/sms/tasks/pending?app_id=w&wait=30")
		withoutNATS.SubmitTo(task.DefaultQueue)
		require.Empty(t, waiting, when)
		broker.Start()
		require.Len(t, awaitResponse(s, waiting).List(), 1, when)
		broker.Kill()
	}
}

func TestMessageIsPostedIfResponseToItsSaveIsLost(t *testing.T) {
	t.Parallel()
	posts := make(chan bool, 10)
	shop := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { posts <- true }))
	t.Cleanup(shop.Close)
	w := cluster.OpenTwoPhase(t, "SENDONCE_SAFETY_TICK=1h")
	proxy := sandbox.NewProxy(t, w.DatabaseURL)
	w.Env = append(w.Env, "DATABASE_URL="+proxy.URL())
	w.StartWithoutTrigger()
	w.StartTrigger(w.Client.BaseURL)
	submit := func(key string) {
		_, err := w.Client.SubmitMessage(t.Context(), api.MessageRequest{ClientMsgID: key, To: shop.URL, Data: api.JSON(`1`), Ack: "accepted"})
		require.NoError(t, err)
	}
	submit("before")
	<-posts
	w.Admin.WaitCount(0, `select count(*) from message_live`)
	fired := proxy.LoseResponse(sandbox.Containing("commit"))
	submit("lost")
	<-fired
	cluster.Within(t, cluster.WaitLimit, posts, "the POST of the saved message")
}

// The first call of each kind goes to a server without NATS, as if its process had died before it published the wake-up.
func TestRepeatPublishesLostWakeUp(t *testing.T) {
	t.Parallel()
	url, broker := sandbox.NewDatabase(t), cluster.NewNATS(t)
	withoutNATS, withNATS := cluster.ServeOn(t, url), cluster.ServeOn(t, url, cluster.WithNATS(t, broker.URL()))
	for _, c := range []struct{ path, body, wakes string }{
		{"/api/v1/sms/send", `{"phone_number":"13800138000","content":"x","idempotency_key":"k"}`, bus.QueueSubject("default")},
		{cluster.MessagesPath, `{"client_msg_id":"inbox","to":"user:bob","data":1}`, bus.WakeRelay},
		{cluster.MessagesPath, `{"client_msg_id":"url","to":"https://shop.test/","data":1}`, bus.WakeDeliver},
		{cluster.SubscribePath + "send", cluster.Booking(1, ""), bus.WakeWeChat},
	} {
		wakeUps := subscribeTo(t, broker.URL(), c.wakes)
		for _, s := range []*cluster.Client{withoutNATS, withNATS} {
			s.Post(c.path, c.body).RequireOK()
		}
		_, err := wakeUps.NextMsg(cluster.WaitLimit)
		require.NoError(t, err, c.wakes)
	}
}
