package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// The fake WeChat has one template, and one user, who consents to messages with this template.
const (
	wechatTemplate   = "tmpl-1"
	wechatUser       = "oABC123"
	wechatConsents   = 1000 // number of messages to which the user consents
	wechatLedgerSize = 1000 // number of the newest calls that the ledger keeps
)

// startWeChat starts a fake WeChat that prints messages instead of sending them, and returns settings that use the fake
// WeChat. If WECHAT_APP_ID is set, startWeChat starts nothing.
func startWeChat(ctx context.Context, s settings, out io.Writer) (_ settings, stop func() error, err error) {
	if s.all["WECHAT_APP_ID"] != "" {
		printStep(out, "wechat", "the app of WECHAT_APP_ID")
		return s, keepRunning, nil
	}
	secret := rand.Text()
	netrcFile, err := writeSecret(s.home, "wechat_netrc", netrcOf("ledger", secret))
	if err != nil {
		return s, nil, err
	}
	// Each run has a new app id: for the app id of an earlier run, Postgres may have an access token that this WeChat does
	// not accept.
	o := sandbox.WeChatOptions{AppID: "wx-" + rand.Text(), Secret: secret, Templates: []string{wechatTemplate}, OneTime: true, Keep: wechatLedgerSize,
		Log: func(format string, args ...any) {
			fmt.Fprintln(out, "wechat:", strings.TrimSpace(printable(fmt.Sprintf(format, args...))))
		},
	}
	wechat, err := sandbox.StartWeChat(ctx, o)
	if err != nil {
		return s, nil, err
	}
	wechat.Grant(wechatUser, wechatTemplate, wechatConsents)
	printStep(out, "wechat", fmt.Sprintf("curl --netrc-file '%s' %s/ledger", netrcFile, wechat.URL()))
	s.wechatURL, s.wechatSecret, s.all = wechat.URL(), secret, maps.Clone(s.all)
	s.all["WECHAT_BASE_URL"], s.all["WECHAT_APP_ID"], s.all["WECHAT_APP_SECRET"] = s.wechatURL, o.AppID, secret
	return s, wechat.Stop, nil
}
