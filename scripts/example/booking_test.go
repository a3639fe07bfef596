package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

func TestBookingIsSentOnce(t *testing.T) {
	t.Parallel()
	nats, functions, database := natsserver.New(t), sandbox.Build(t, module+"functions/sendonce"), sandbox.NewDatabase(t)
	wechat := sandbox.NewWeChat(t, sandbox.WeChatOptions{Templates: []string{bookingTemplate}, OneTime: true})
	wechat.Grant(bookingUser, bookingTemplate, 2)
	env := append(sandbox.RolesEnv(), "BASIC_AUTH_PASSWORD=secret", "SENDONCE_ENCRYPTION_KEYS="+sandbox.EncryptionKey, "APP_HOST=127.0.0.1", "PORT=0", "NATS_URL="+nats.URL(), "WECHAT_BASE_URL="+wechat.URL(),
		"WECHAT_APP_ID="+sandbox.WeChatAppID, "WECHAT_APP_SECRET="+sandbox.WeChatSecret)
	sendonce := (&restartableProcess{bin: functions, env: env}).startBehindProxy(t, database)
	sandbox.StartProcess(t, functions, append(env[:len(env):len(env)], "SENDONCE_FUNCTIONS_URL="+sendonce.front.URL, "SENDONCE_SAFETY_TICK=1s"), "trigger")
	home := runHome(t, sendonce.front.URL, database, nats.URL())
	file, err := os.OpenFile(filepath.Join(home, "run.env"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString("WECHAT_URL=" + wechat.URL() + "\nWECHAT_LEDGER_SECRET=" + sandbox.WeChatSecret + "\n")
	require.NoError(t, err)
	require.NoError(t, file.Close())

	for n := 1; n <= 2; n++ {
		p := sandbox.StartProcess(t, sandbox.Build(t, module+"scripts/example"), []string{"SENDONCE_HOME=" + home}, "booking")
		require.Zero(t, p.ExitCode(), p.Output())
		require.Regexp(t, `^booking (\d+) submitted: message (\d+) will be sent
booking \d+ submitted: message \d+ skipped, as it is (being )?sent
sent, seen \S+ after the first submission
booking \d+ submitted: message \d+ skipped, as it is sent
at WeChat: calls for it: 1, delivered to oABC123: 1
$`, p.Output())
		require.Len(t, wechat.Sends(), n)
	}
}

func TestBookingNeedsFakeWeChat(t *testing.T) {
	t.Parallel()
	sendonce := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(sendonce.Close)
	p := sandbox.StartProcess(t, sandbox.Build(t, module+"scripts/example"), []string{"SENDONCE_HOME=" + runHome(t, sendonce.URL, "", "")}, "booking")
	require.Equal(t, 1, p.ExitCode())
	require.Contains(t, p.Output(), "make run sends through the WeChat of WECHAT_APP_ID")
}
