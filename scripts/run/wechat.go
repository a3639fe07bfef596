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
)

// startWeChat starts a WeChat that prints what it is asked for instead of sending
// it, and gives the settings that lead there; none where the operator has an app.
func startWeChat(ctx context.Context, s settings, out io.Writer) (settings, interface{ Stop() error }, error) {
	if s.all["WECHAT_APP_ID"] != "" {
		progress(out, "wechat", "the one of WECHAT_APP_ID")
		return s, nobodys{}, nil
	}
	// An app of its own: the access token of an earlier run is no good here.
	o := sandbox.WeChatOptions{AppID: "wx-" + rand.Text(), Templates: []string{wechatTemplate}, OneTime: true,
		Log: func(format string, args ...any) {
			fmt.Fprintln(out, "wechat:", strings.TrimSpace(printable(fmt.Sprintf(format, args...))))
		},
	}
	wechat, err := sandbox.StartWeChat(ctx, o)
	if err != nil {
		return s, nil, err
	}
	wechat.Grant(wechatUser, wechatTemplate, wechatGrants)
	progress(out, "wechat", wechat.URL()+"/ledger")
	s.wechatURL, s.all = wechat.URL(), maps.Clone(s.all)
	s.all["WECHAT_BASE_URL"], s.all["WECHAT_APP_ID"], s.all["WECHAT_APP_SECRET"] = s.wechatURL, o.AppID, sandbox.WeChatSecret
	return s, wechat, nil
}
