package claim_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

func TestClaimOfDisconnectedAppReleasesTasks(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	_, functions := cluster.NewEnv(t, proxy.URL())
	arrived, disconnected := make(chan struct{}), make(chan struct{})
	s := cluster.ServeHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("app_id") == "leaver" {
			context.AfterFunc(r.Context(), func() { close(disconnected) })
			close(arrived)
		}
		functions.ServeHTTP(w, r)
	})).Connect(url)
	s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`)

	proxy.Stall()
	ctx, disconnect := context.WithCancel(t.Context())
	req := s.Request(ctx, "GET", "/api/v1/sms/tasks/pending?app_id=leaver", "")
	clientErr := make(chan error, 1)
	go func() {
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		clientErr <- err
	}()
	<-arrived
	disconnect()
	require.Error(t, <-clientErr)
	<-disconnected
	proxy.Resume()
	s.WaitCount(1, `select count(*) from report_logs where app_id = 'leaver' and verdict = 'applied'`)
	fresh := s.Get("/api/v1/sms/tasks/pending?app_id=stayer").List()
	require.Len(t, fresh, 1)
	require.EqualValues(t, 0, fresh[0]["retry_count"], "the release does not count as a retry")
}

func TestWaitingClaimSendsNoStatementsUntilItIsWoken(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	empty := s.StartWaiting("/api/v1/sms/tasks/pending?app_id=a&wait=1")
	before := s.LastStatementAt()
	got := <-empty
	require.Equal(t, 200, got.Status)
	require.Empty(t, got.List())
	require.Equal(t, before, s.LastStatementAt())
	woken := s.StartWaiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
	cluster.RequireClaimed(t, woken, 20*time.Second, s.SubmitTo(task.DefaultQueue))
}

func TestCallerRevokedDuringItsClaimGetsNoTask(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	id := s.SubmitTo(task.DefaultQueue)
	phone := s.NewCaller("phone", "sender")
	release := storetest.HoldLock(t, storetest.ConnectAsOwner(t, s.Owner.Config().ConnString()), `lock table send_logs in exclusive mode`) // the claim has to wait
	claimed := make(chan cluster.Reply, 1)
	go func() { claimed <- phone.Get(cluster.SMSPath + "tasks/pending?app_id=app") }()
	cluster.Eventually(t, func() bool { return storetest.IsWaiting(t, s.Owner) })
	s.Post(s.CallerPath("phone")+"/revoke", "").RequireOK()
	release()
	require.Equal(t, 401, (<-claimed).Status)
	require.Equal(t, "pending", s.Get(cluster.SMSPath+"task/"+id).Data("state"), "the task is released")
}
