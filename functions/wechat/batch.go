package wechat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// tally counts what was claimed and what came of it, by class.
type tally struct {
	claimed int
	results map[string]int
}

func (t *tally) add(more *tally) {
	t.claimed += more.claimed
	if t.results == nil {
		t.results = map[string]int{}
	}
	for class, n := range more.results {
		t.results[class] += n
	}
}

// batch is what was claimed at once and is sent at once.
type batch struct {
	*sender
	tally
	reportBy time.Time // until then what could not be reported is tried again
	token    token
	sends    map[task.ID]store.SubscribeSend
	paused   map[store.CallerTemplate]bool

	mu       sync.Mutex // guards what follows, and the results
	trouble  *result    // of the channel: nothing more is begun
	troubles []class    // all that were met
	errs     []error
}

func (s *sender) newBatch(deadline time.Time) *batch {
	return &batch{sender: s, reportBy: deadline, tally: tally{results: map[string]int{}}}
}

// goesOn tells whether there may be more to send, and that it may be sent.
func (b *batch) goesOn() bool { return b.claimed == b.cfg.Concurrency && b.trouble == nil }

// send claims a batch and brings everything in it to its end, whatever becomes of
// the call. Errors are of the database; what they kept from being reported is
// left to its lease.
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
	if n := b.results[unknown.String()]; n == b.claimed && b.goesOn() {
		b.trouble = &result{} // WeChat answers nobody; who is not asked does not end unknown
		b.env.WakeAgainAt(bus.WakeWeChat, time.Now().Add(awayFor))
	}
	return errors.Join(b.errs...)
}

func (b *batch) claim(ctx context.Context) ([]store.Claimed, error) {
	request, err := json.Marshal(map[string]any{"function": "wechat", "limit": b.cfg.Concurrency, "lease_seconds": b.lease().Seconds(), "marks_sending": true})
	if err != nil {
		return nil, err
	}
	claimed, touched, err := b.db.Claim(ctx, store.ClaimRequest{
		Queue: task.WeChatQueue, AppID: b.app, CallerID: task.ServiceCaller, Limit: b.cfg.Concurrency, Lease: b.lease(), MarksSending: true, Request: request,
	})
	for queue, n := range touched {
		if err == nil || queue != task.WeChatQueue { // after an error we are called again, later each time
			b.env.WakeClaims(queue, n)
		}
	}
	if b.tally.claimed = len(claimed); len(claimed) > 0 {
		b.env.WakeSweepAt(claimed[0].LeaseUntil)
	}
	return claimed, err
}

// prepare gets what all attempts need. Without it nothing is begun. The token comes
// first, as it may take long: what is sent meanwhile, or paused, is to be seen.
func (b *batch) prepare(ctx context.Context, claimed []store.Claimed) {
	var err error
	if b.token, err = b.client.token(ctx); err != nil {
		if task.CodeOf(err) != "" {
			b.fail(err) // the database's, not WeChat's
		}
		b.stop(ctx, withoutToken(err))
		return
	}
	ids := make([]task.ID, len(claimed))
	for i, t := range claimed {
		ids[i] = t.ID
	}
	if b.sends, err = b.db.BeginSends(ctx, ids); err == nil {
		var templates []store.CallerTemplate
		for _, m := range b.sends {
			templates = append(templates, m.CallerTemplate())
		}
		b.paused, err = b.db.PausedTemplates(ctx, templates)
	}
	if err != nil {
		b.fail(err)
		b.stop(ctx, result{verdict{class: away, retryAfter: awayFor}, codeNotSent, "what to send could not be read"})
	}
}

// attempt sends the message of one task, unless something speaks against it; nil
// when the task is not ours any more.
func (b *batch) attempt(ctx context.Context, t store.Claimed) *result {
	m, found := b.sends[t.ID]
	if stopped := b.stopped(); stopped != nil {
		return stopped
	}
	switch {
	case !found:
		return &result{verdict{class: dataRefused}, codeNoMessage, "the task is no subscribe message's"}
	case m.Sent:
		return &result{verdict{class: dataRefused}, codeAlreadySent, "another send of this message was delivered meanwhile"}
	case b.paused[m.CallerTemplate()]:
		return &result{verdict{class: away, retryAfter: templateFor}, codeTemplatePaused, "template " + m.TemplateID + " is paused for this caller"}
	}
	lease, err := b.db.Extend(ctx, store.Extension{TaskID: t.ID, AppID: b.app, CallerID: task.ServiceCaller, ClaimID: t.ClaimID, Lease: b.lease(), Sending: true}, nil)
	switch {
	case task.CodeOf(err) == task.CodeStaleClaim || task.CodeOf(err) == task.CodeNotFound:
		return nil
	case err != nil:
		b.fail(err)
		return &result{verdict{class: away, retryAfter: awayFor}, codeNotSent, "it could not be marked as sending"}
	}
	b.env.WakeSweepAt(lease.LeaseUntil)
	r := b.call(ctx, message{
		OpenID: m.ReceiverOpenID, TemplateID: m.TemplateID, Page: m.Page, Data: m.Data, MiniprogramState: m.MiniprogramState, Lang: m.Lang,
	})
	b.learn(ctx, m.CallerTemplate(), r)
	return &r
}

// call sends a message. One that breaks us must not end the process, and with it
// what others send.
func (b *batch) call(ctx context.Context, m message) (r result) {
	defer func() {
		if p := recover(); p != nil {
			b.fail(fmt.Errorf("send a subscribe message: panic: %v\n%s", p, debug.Stack()))
			r = result{verdict{class: unknown}, codePanic, "sending it broke off"}
		}
	}()
	return b.client.send(ctx, b.token, m)
}

// learn draws from an answer what it says about other messages.
func (b *batch) learn(ctx context.Context, template store.CallerTemplate, r result) {
	switch r.class {
	case sent:
		b.fail(b.db.ClearTemplate(ctx, template))
	case dataRefused:
		if r.strikesTemplate {
			b.strike(ctx, template, r)
		}
	case throttled, away, tokenRefused, quotaSpent, misconfigured:
		b.stop(ctx, r)
	}
}

// fail keeps an error for the call.
func (b *batch) fail(err error) {
	if err == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.errs = append(b.errs, err)
}
