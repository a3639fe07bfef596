package wechat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// send claims a batch, and attempts and reports each of its tasks, even if ctx ends meanwhile. The error joins all errors of the
// database and all panics. Tasks that could not be reported stay claimed until their leases end.
func (b *batch) send(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.lease())
	defer cancel()
	claimed, err := b.claim(ctx)
	if err != nil || len(claimed) == 0 {
		return err
	}
	b.prepare(ctx, claimed)
	var all sync.WaitGroup
	for _, t := range claimed {
		all.Go(func() { b.report(ctx, t, b.attempt(ctx, t)) })
	}
	all.Wait()
	if n := b.results[unknown.String()]; n == b.claimed && b.hasMore() {
		b.stopReason = &result{} // WeChat does not respond: more attempts would only add unknown outcomes
		b.env.WakeAgainAt(bus.WakeWeChat, time.Now().Add(awayDelay))
	}
	return errors.Join(b.errs...)
}

func (b *batch) claim(ctx context.Context) ([]tasks.Claimed, error) {
	request, err := json.Marshal(map[string]any{"function": "wechat", "limit": b.cfg.Concurrency, "lease_seconds": b.lease().Seconds(), "marks_sending": true})
	if err != nil {
		return nil, err
	}
	claimed, pending, err := b.env.Tasks.Claim(ctx, tasks.ClaimRequest{
		Queue: task.WeChatQueue, AppID: b.app, CallerID: task.ServiceCaller, Limit: b.cfg.Concurrency, Lease: b.lease(), MarksSending: true, Request: request,
	})
	for queue, n := range pending {
		if err == nil || queue != task.WeChatQueue { // no wake-up of wechat after an error: the event is redelivered with growing delays
			b.env.WakeClaims(queue, n)
		}
	}
	if b.claimed = len(claimed); len(claimed) > 0 {
		b.env.WakeSweepAt(claimed[0].LeaseUntil)
	}
	return claimed, err
}

// prepare reads what all attempts need, and stops the batch on an error. It gets the token before it reads the messages, because a
// token may take seconds. A message that is reported as sent during these seconds, or whose template is paused, must not be sent.
func (b *batch) prepare(ctx context.Context, claimed []tasks.Claimed) {
	var err error
	if b.token, err = b.client.token(ctx); err != nil {
		if task.CodeOf(err) != "" {
			b.addError(err) // an error of the database, not of WeChat
		}
		b.stop(ctx, tokenErrorResult(err))
		return
	}
	ids := store.Column(claimed, func(t tasks.Claimed) task.ID { return t.ID })
	if b.sends, err = b.env.Subscribe.BeginSends(ctx, ids); err == nil {
		var templates []subscribe.CallerTemplate
		for _, m := range b.sends {
			templates = append(templates, m.CallerTemplate())
		}
		b.paused, err = b.env.Subscribe.PausedTemplates(ctx, templates)
	}
	if err != nil {
		b.addError(err)
		b.stop(ctx, result{verdict{class: away, retryAfter: awayDelay}, codeNotSent, "the messages could not be read"})
	}
}

// attempt sends the message of one task and returns the result. It sends nothing if the batch was stopped, the message was sent
// before, or the message's template is paused. It returns nil if the claim has ended or the task has expired.
func (b *batch) attempt(ctx context.Context, t tasks.Claimed) *result {
	m, found := b.sends[t.ID]
	if stopped := b.stopped(); stopped != nil {
		return stopped
	}
	switch {
	case !found:
		return &result{verdict{class: dataRefused}, codeNoMessage, "the task has no subscribe message"}
	case m.Sent:
		return &result{verdict{class: dataRefused}, codeAlreadySent, "another send of this message was delivered meanwhile"}
	case b.paused[m.CallerTemplate()]:
		// The delay is random: if all these messages were due at once, they would be claimed before newer messages of other
		// callers.
		delay := pausedTemplateDelay/2 + rand.N(pausedTemplateDelay)
		return &result{verdict{class: away, retryAfter: delay}, codeTemplatePaused, "template " + m.TemplateID + " is paused for this caller"}
	}
	lease, err := b.env.Tasks.Extend(ctx, tasks.Extension{TaskID: t.ID, AppID: b.app, CallerID: task.ServiceCaller, ClaimID: t.ClaimID, Lease: b.lease(), Sending: true}, nil)
	switch {
	case task.CodeOf(err) == task.CodeStaleClaim || task.CodeOf(err) == task.CodeNotFound:
		return nil
	case err != nil:
		b.addError(err)
		return &result{verdict{class: away, retryAfter: awayDelay}, codeNotSent, "the task could not be marked as sending"}
	}
	b.env.WakeSweepAt(lease.LeaseUntil)
	r := b.call(ctx, message{
		OpenID: m.ReceiverOpenID, TemplateID: m.TemplateID, Page: m.Page, Data: m.Data, MiniprogramState: m.MiniprogramState, Lang: m.Lang,
	})
	b.applyResult(ctx, m.CallerTemplate(), r)
	return &r
}

// call sends a message. A panic becomes an unknown result, so that the other messages are sent and reported.
func (b *batch) call(ctx context.Context, m message) (r result) {
	defer func() {
		if p := recover(); p != nil {
			b.addError(fmt.Errorf("send a subscribe message: panic: %v\n%s", p, debug.Stack()))
			r = result{verdict{class: unknown}, codePanic, "panic while sending"}
		}
	}()
	return b.client.send(ctx, b.token, m)
}

// applyResult counts an error of the template or, after a success, resets the count. It stops the batch if other attempts would
// fail for the same reason.
func (b *batch) applyResult(ctx context.Context, template subscribe.CallerTemplate, r result) {
	switch r.class {
	case sent:
		b.addError(b.env.Subscribe.ClearTemplate(ctx, template))
	case dataRefused:
		if r.strikesTemplate {
			b.strike(ctx, template, r)
		}
	case throttled, away, tokenRefused, quotaSpent, misconfigured:
		b.stop(ctx, r)
	}
}
