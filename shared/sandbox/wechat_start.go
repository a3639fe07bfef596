package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
)

// StartWeChat starts a fake WeChat.
func StartWeChat(ctx context.Context, o WeChatOptions) (*WeChat, error) {
	o.AppID, o.Secret = cmp.Or(o.AppID, WeChatAppID), cmp.Or(o.Secret, WeChatSecret)
	o.TokenLife = cmp.Or(o.TokenLife, 2*time.Hour)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a fake WeChat: %w", err)
	}
	w := &WeChat{o: o, url: "http://" + listener.Addr().String(), stop: make(chan struct{}), cleared: make(chan struct{}),
		tokens: map[string]*wechatToken{}, grants: map[wechatGrant]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /cgi-bin/stable_token", w.token)
	mux.HandleFunc("POST /cgi-bin/message/subscribe/send", w.send)
	mux.HandleFunc("GET /ledger", w.ledger)
	w.server = httpserver.New(w.counted(mux), wechatConnections, log.New(io.Discard, "", 0))
	w.server.WriteTimeout = 0 // a fault may delay a response for hours
	go func() { _ = w.server.Serve(listener) }()
	return w, nil
}

// NewWeChat starts a fake WeChat until the end of the test.
func NewWeChat(t testing.TB, o WeChatOptions) *WeChat {
	t.Helper()
	w, err := StartWeChat(t.Context(), o)
	must(t, err)
	stopAtEnd(t, w.Stop)
	return w
}
