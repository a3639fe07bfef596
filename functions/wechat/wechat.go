// Package wechat is the event function that sends subscribe messages, the tasks of queue wechat, through WeChat:
//
//	POST /events/wechat
//
// It marks a task as sending just before it sends the request. If the process dies before the mark, the message was not sent and
// is sent later. If it dies after the mark, the message may have been sent, and the task's on_unknown decides.
//
// The response of WeChat decides the report (classify.go). If the response is about WeChat or this app and not about the message,
// the rest of the batch is released, which uses no attempt. A spent quota pauses the queue until midnight in Shanghai, and wrong
// settings pause it until an operator resumes it. After other errors the tasks are claimed again later, in their order.
//
// If another send of the same message was delivered meanwhile, the task fails with ALREADY_SENT, and the message stays sent.
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
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// Config has the function's settings.
type Config struct {
	BaseURL     url.URL       `envconfig:"WECHAT_BASE_URL" default:"https://api.weixin.qq.com" desc:"URL of the WeChat API, or of a replacement"`
	AppID       string        `envconfig:"WECHAT_APP_ID" desc:"app id of the mini program; empty sends no subscribe messages"`
	Secret      string        `envconfig:"WECHAT_APP_SECRET" secret:"true" desc:"app secret of the mini program"`
	Timeout     time.Duration `envconfig:"WECHAT_TIMEOUT" default:"10s" desc:"timeout of one call to WeChat, 1s to 10s; after that it is unknown whether its message was delivered"`
	Concurrency int           `envconfig:"WECHAT_CONCURRENCY" default:"32" desc:"subscribe messages that one call of the function sends at once, 1 to 500; up to four calls are made at once"`
}

// Validate names every setting whose value is not acceptable.
func (c *Config) Validate() []task.Field {
	var bad decode.Rules
	bad.When(c.BaseURL.Scheme != "http" && c.BaseURL.Scheme != "https" || c.BaseURL.Host == "", "WECHAT_BASE_URL", "must be a URL such as https://api.weixin.qq.com")
	bad.When(c.AppID != "" && c.Secret == "", "WECHAT_APP_SECRET", "must be set together with WECHAT_APP_ID")
	bad.When(c.Timeout < time.Second || c.Timeout > 10*time.Second, "WECHAT_TIMEOUT", "must be between 1s and 10s")
	bad.When(c.Concurrency < 1 || c.Concurrency > 500, "WECHAT_CONCURRENCY", "must be between 1 and 500")
	return bad
}

// Function sends subscribe messages through WeChat.
var Function = fn.Event("wechat", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) fn.EventHandler {
	s := &sender{
		subscribe: env.Subscribe, tasks: env.Tasks, env: env, cfg: cfg, app: "wechat-" + strings.ToLower(rand.Text()[:12]),
		client: newClient(&cfg.BaseURL, cfg.AppID, cfg.Secret, cfg.Timeout, sharedTokens{env.Subscribe, cfg.AppID}),
	}
	s.logDisabled = sync.OnceFunc(func() { env.Log.Info("no subscribe messages are sent: WECHAT_APP_ID is not set") })
	return s.send
}

// reportTime is the part of a call's time that is left for reports.
const reportTime = 5 * time.Second

type sender struct {
	subscribe   *subscribe.Store
	tasks       *tasks.Store
	env         *fn.Env
	cfg         Config
	app         string // the app_id of this instance's claims
	client      *client
	logDisabled func() // logs once that there is no app id
}

// lease is longer than an attempt, which makes up to three calls of WeChat: two sends and a token between them.
func (s *sender) lease() time.Duration { return 3*s.cfg.Timeout + 45*time.Second }

// send sends pending tasks, batch by batch, until no more can be claimed or a batch was stopped. If the time of the call ends
// first, or the process is draining, send wakes another call.
func (s *sender) send(ctx context.Context, c *fn.Call, _ cloudevents.Event) error {
	if s.cfg.AppID == "" {
		s.logDisabled()
		return nil
	}
	deadline, _ := ctx.Deadline()
	until, total := deadline.Add(-s.cfg.Timeout-reportTime), tally{}
	defer func() { c.Log("claimed", total.claimed, "results", total.results) }()
	for {
		if s.isDraining() || time.Now().After(until) {
			s.env.WakeWeChatAt(time.Time{})
			return nil
		}
		b := &batch{sender: s, reportBy: deadline, tally: tally{results: map[string]int{}}}
		err := b.send(ctx)
		total.add(&b.tally)
		if err != nil || !b.hasMore() {
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
