package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestSenderReportsProgressAndErrors(t *testing.T) {
	t.Parallel()
	bin := sandbox.Build(t, "github.com/sendonce/sendonce/scripts/sender")
	_, handler := cluster.NewEnv(t, sandbox.NewDatabase(t))
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	at := fmt.Sprintf("127.0.0.1:%d", port)
	run := func(password string) *sandbox.Process {
		return cluster.StartProcess(t, bin, []string{"SENDONCE_PASSWORD=" + password},
			"-url", "http://"+at, "-app", "phone-1", "-journal", filepath.Join(t.TempDir(), "journal"))
	}
	waitFor := func(p *sandbox.Process, line string) {
		t.Helper()
		require.NoError(t, p.WaitFor(t.Context(), line), p.Output())
	}

	phone := run("secret")
	waitFor(phone, "sender: connecting to http://"+at+" as the user admin\n")
	waitFor(phone, "sender: cannot claim tasks: nothing listens at http://"+at+": start make run, or give the address of the service with -url; trying again until it works\n")
	service := cluster.NewClient(t, "http://"+at)
	var refused atomic.Int32
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password == "wrong" {
			refused.Add(1)
		}
		handler.ServeHTTP(w, r)
	}))
	web.Listener = cluster.ListenAt(t, at)
	web.Start()
	t.Cleanup(web.Close)
	waitFor(phone, "sender: connected to http://"+at+" as phone-1, waiting for tasks of queue default (after ")
	require.Equal(t, 1, strings.Count(phone.Output(), "cannot claim"), phone.Output())

	sent := service.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hello"}`).RequireOK()
	waitFor(phone, "sent to 138****8000: hello\n")
	waitFor(phone, fmt.Sprintf("sender: task %v to 138****8000: ok\n", sent.Data("task_id")))

	stranger := run("wrong")
	waitFor(stranger, `sender: cannot claim tasks: the service does not accept the user "admin" with this password: check -user and -password`)
	cluster.Eventually(t, func() bool { return refused.Load() >= 3 })
	require.Equal(t, 1, strings.Count(stranger.Output(), "cannot claim"), stranger.Output())
	require.NoError(t, phone.Kill()) // otherwise web.Close would wait for its long poll
}
