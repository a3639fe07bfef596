// Package wechat is the event function that sends subscribe messages, the tasks of queue wechat, through WeChat:
//
//	POST /events/wechat
//
// The function marks a task as sending just before it sends the request. If the process dies before the mark, the message was not
// sent, and the task can be claimed again when its lease ends. If the process dies after the mark, the message may have been sent,
// and the task's on_unknown decides.
//
// The response of WeChat decides the report (classify.go). If other messages would fail for the same reason, such as a call limit,
// refused tokens or no connection, the task and the rest of the batch are released, which uses no retry. A spent daily quota also
// pauses the queue until midnight in Shanghai, and wrong settings pause it until an operator resumes it. In the other cases the
// released tasks can be claimed again after a delay.
//
// If another send of the same message was delivered meanwhile, the task fails with ALREADY_SENT, and the message stays sent.
package wechat

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/fn"
)

// Function sends subscribe messages through WeChat.
var Function = fn.Event("wechat", New)

// New runs once per cold start and uses no network.
func New(env *fn.Env, cfg Config) fn.EventHandler {
	s := &sender{
		env: env, cfg: cfg, app: "wechat-" + strings.ToLower(rand.Text()[:12]),
		client: newClient(&cfg.BaseURL, cfg.AppID, cfg.Secret, cfg.Timeout, sharedTokens{env.Subscribe, cfg.AppID}),
		calls:  make(chan struct{}, maxCalls),
	}
	s.logDisabled = sync.OnceFunc(func() { env.Log.Info("no subscribe messages are sent: WECHAT_APP_ID is not set") })
	return s.send
}

// send sends pending tasks, batch by batch, until no full batch can be claimed, or a batch was stopped or failed. If the time of
// the call ends first, or the process is draining, send wakes another call. In a process, at most maxCalls calls send at once;
// further calls wait.
func (s *sender) send(ctx context.Context, c *fn.Call, _ cloudevents.Event) error {
	if s.cfg.AppID == "" {
		s.logDisabled()
		return nil
	}
	select {
	case s.calls <- struct{}{}:
		defer func() { <-s.calls }()
	case <-ctx.Done():
		s.env.WakeWeChatAt(time.Time{})
		return nil
	}
	deadline, _ := ctx.Deadline()
	lastStart, total := deadline.Add(-s.cfg.Timeout-reportTime), tally{results: map[string]int{}}
	defer func() { c.Log("claimed", total.claimed, "results", total.results) }()
	for {
		if s.env.IsDraining() || time.Now().After(lastStart) {
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
