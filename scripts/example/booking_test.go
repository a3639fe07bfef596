package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

func TestBookingIsSentOnce(t *testing.T) {
	t.Parallel()
	nats := natsserver.New(t, natsserver.Options{})
	wechat := sandbox.NewWeChat(t, sandbox.WeChatOptions{Templates: []string{bookingTemplate}, OneTime: true})
	wechat.Grant(bookingUser, bookingTemplate, 2)
	sendonce, _ := startSendonce(t, nats.URL(), nats.URL(), "WECHAT_BASE_URL="+wechat.URL(), "WECHAT_APP_ID="+sandbox.WeChatAppID,
		"WECHAT_APP_SECRET="+sandbox.WeChatSecret)
	home := writeRunHome(t, sendonce.proxy.URL, sendonce.databaseURL, nats.URL(), "WECHAT_URL="+wechat.URL(), "WECHAT_LEDGER_SECRET="+sandbox.WeChatSecret)

	for n := 1; n <= 2; n++ {
		p := sandbox.StartProcess(t, sandbox.Build(t, module+"scripts/example"), []string{"SENDONCE_HOME=" + home}, "booking")
		require.Zero(t, p.ExitCode(), p.Output())
		require.Regexp(t, `^booking (\d+) submitted: message (\d+) will be sent
booking \d+ submitted: message \d+ skipped, as it is (being )?sent
seen as sent \S+ after the first submission
booking \d+ submitted: message \d+ skipped, as it is sent
WeChat: calls for this message: 1, delivered to oABC123: 1
$`, p.Output())
		require.Len(t, wechat.Sends(), n)
	}
}

func TestBookingNeedsFakeWeChat(t *testing.T) {
	t.Parallel()
	sendonce := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(sendonce.Close)
	p := sandbox.StartProcess(t, sandbox.Build(t, module+"scripts/example"), []string{"SENDONCE_HOME=" + writeRunHome(t, sendonce.URL, "", "")}, "booking")
	require.Equal(t, 1, p.ExitCode())
	require.Contains(t, p.Output(), "make run uses the real WeChat")
}
