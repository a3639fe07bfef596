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

// Who has consented to what at the WeChat of `make run`; everybody else has not.
const (
	wechatTemplate = "tmpl-1"
	wechatUser     = "oABC123"
	wechatGrants   = 1000 // messages
	wechatKept     = 1000 // calls in the ledger
)

// startWeChat starts a WeChat that prints what it is asked for instead of sending
// it, and gives the settings that lead there; none where the operator has an app.
func startWeChat(ctx context.Context, s settings, out io.Writer) (settings, interface{ Stop() error }, error) {
	if s.all["WECHAT_APP_ID"] != "" {
		progress(out, "wechat", "the one of WECHAT_APP_ID")
		return s, nobodys{}, nil
	}
	secret := rand.Text()
	netrc, err := writeSecret(s.home, "wechat_netrc", netrcOf("ledger", secret))
	if err != nil {
		return s, nil, err
	}
	// An app of its own: the access token of an earlier run is no good here.
	o := sandbox.WeChatOptions{AppID: "wx-" + rand.Text(), Secret: secret, Templates: []string{wechatTemplate}, OneTime: true, Keep: wechatKept,
		Log: func(format string, args ...any) {
			fmt.Fprintln(out, "wechat:", strings.TrimSpace(printable(fmt.Sprintf(format, args...))))
		},
	}
	wechat, err := sandbox.StartWeChat(ctx, o)
	if err != nil {
		return s, nil, err
	}
	wechat.Grant(wechatUser, wechatTemplate, wechatGrants)
	progress(out, "wechat", fmt.Sprintf("curl --netrc-file '%s' %s/ledger", netrc, wechat.URL()))
	s.wechatURL, s.wechatSecret, s.all = wechat.URL(), secret, maps.Clone(s.all)
	s.all["WECHAT_BASE_URL"], s.all["WECHAT_APP_ID"], s.all["WECHAT_APP_SECRET"] = s.wechatURL, o.AppID, secret
	return s, wechat, nil
}
