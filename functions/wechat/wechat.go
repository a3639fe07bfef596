// Package wechat is the event function that sends subscribe messages through
// WeChat (seed 000), the tasks of queue wechat:
//
//	POST /events/wechat
//
// It claims with marks_sending and keeps that promise: a task is marked just
// before its request leaves. A wechat that dies before that has sent nothing, and
// the message is sent again; one that dies after it may have sent, and the order's
// on_unknown decides. What WeChat answers decides the report (classify.go). Where
// the answer is about the channel and not about the message, what is not begun is
// given back, and no attempt is used: the channel is left alone for a while, or
// the queue is paused, by the quota until midnight in Shanghai, by settings that
// are wrong until an operator resumes it.
//
// A message that another send of it has delivered meanwhile is not sent again: its
// task fails with ALREADY_SENT, since it has sent nothing, and the row stays sent.
// What is given back is claimed again later, in its order.
package wechat

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Config is the function's settings.
type Config struct {
	BaseURL     url.URL       `envconfig:"WECHAT_BASE_URL" default:"https://api.weixin.qq.com" desc:"where WeChat, or what stands for it, is"`
	AppID       string        `envconfig:"WECHAT_APP_ID" desc:"app id of the mini program; empty sends no subscribe messages"`
	Secret      string        `envconfig:"WECHAT_APP_SECRET" secret:"true" desc:"app secret of the mini program"`
	Timeout     time.Duration `envconfig:"WECHAT_TIMEOUT" default:"10s" desc:"how long one call of WeChat may take, 1s to 10s; then nobody knows whether its message was delivered"`
	Concurrency int           `envconfig:"WECHAT_CONCURRENCY" default:"32" desc:"subscribe messages that one call of the function sends at once, 1 to 500; up to four calls are made at once"`
}

// Validate checks what the types alone cannot.
func (c *Config) Validate() []task.Field {
	var bad decode.Rules
	bad.When(c.BaseURL.Scheme != "http" && c.BaseURL.Scheme != "https" || c.BaseURL.Host == "", "WECHAT_BASE_URL", "must be a URL such as https://api.weixin.qq.com")
	bad.When(c.AppID != "" && c.Secret == "", "WECHAT_APP_SECRET", "must be set where WECHAT_APP_ID is")
	bad.When(c.Timeout < time.Second || c.Timeout > 10*time.Second, "WECHAT_TIMEOUT", "must be between 1s and 10s")
	bad.When(c.Concurrency < 1 || c.Concurrency > 500, "WECHAT_CONCURRENCY", "must be between 1 and 500")
	return bad
}

// Function is this package's line in the catalogue.
var Function = fn.Event("wechat", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) fn.EventHandler {
	s := &sender{
		db: env.DB(), env: env, cfg: cfg, app: "wechat-" + strings.ToLower(rand.Text()[:12]),
		client: newClient(&cfg.BaseURL, cfg.AppID, cfg.Secret, cfg.Timeout, sharedTokens{env.DB(), cfg.AppID}),
	}
	s.off = sync.OnceFunc(func() { env.Log.Info("no subscribe messages are sent: WECHAT_APP_ID is not set") })
	return s.send
}

// settleTime is kept of a call's time to report what was sent.
const settleTime = 5 * time.Second

type sender struct {
	db     *store.DB
	env    *fn.Env
	cfg    Config
	app    string // this instance
	client *client
	off    func() // says so
}

// lease is longer than a call and what it may have in hand at its end: in an
// attempt there are up to three calls of WeChat, with a token's in the middle.
func (s *sender) lease() time.Duration { return 3*s.cfg.Timeout + 45*time.Second }

// send sends what is pending, batch by batch, until nothing is left, as of a queue
// that is paused, or the channel is in trouble. When the call's time ends first, or the process is to
// end, it has another call go on.
func (s *sender) send(ctx context.Context, c *fn.Call, _ cloudevents.Event) error {
	if s.cfg.AppID == "" {
		s.off()
		return nil
	}
	deadline, _ := ctx.Deadline()
	until, total := deadline.Add(-s.cfg.Timeout-settleTime), tally{}
	defer func() { c.Log("claimed", total.claimed, "results", total.results) }()
	for {
		if s.isDraining() || time.Now().After(until) {
			s.env.WakeWeChatAt(time.Time{})
			return nil
		}
		b := s.newBatch(deadline)
		err := b.send(ctx)
		total.add(&b.tally)
		if err != nil || !b.goesOn() {
			return err
		}
	}
}

func (s *sender) isDraining() bool {
	select {
	case <-s.env.Draining():
		return true
	default:
		return false
	}
}
