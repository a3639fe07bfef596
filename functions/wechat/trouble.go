package wechat

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// pausedBy is who pauses the queue when no operator does.
const pausedBy = "wechat"

// stop has nothing more of the batch begun. What is in trouble for longer, the
// quota or our settings, pauses the queue first: what is given back then waits for
// the end of the pause.
func (b *batch) stop(ctx context.Context, r result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := slices.Contains(b.troubles, r.class)
	if b.troubles = append(b.troubles, r.class); known {
		return
	}
	if b.trouble == nil {
		b.trouble = &result{r.verdict, r.code, "not begun: " + r.message}
	}
	p := store.Pause{Queue: task.WeChatQueue, Reason: "WeChat answered " + r.code + ": " + r.message}
	switch r.class {
	case tokenRefused:
		b.env.Log.Warn("WeChat refused two access tokens, one after the other: does somebody else refresh the token of this app by force?", "answer", r.message)
		return
	case quotaSpent:
		p.Until = quotaUntil(time.Now())
		b.env.Log.Warn("the daily quota of WeChat is spent, its queue is paused", "until", p.Until, "answer", r.message)
	case misconfigured:
		b.env.Log.Error("WeChat takes no messages from this app until somebody mends that, its queue is paused until it is resumed", "errcode", r.code, "answer", r.message)
	default:
		return
	}
	if err := b.db.PauseQueueAs(ctx, p, pausedBy); err != nil {
		b.errs = append(b.errs, err)
	}
	b.env.WakeSweepAt(p.Until)
}

// stopped says why nothing more may be begun, nil when it may.
func (b *batch) stopped() *result {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.trouble == nil && b.isDraining() {
		return &result{verdict{class: away}, codeNotSent, "not begun: this instance is ending"}
	}
	return b.trouble
}

// strike counts an error caused by the template, or by the data or page that the
// caller gave; three in a row pause the template for this caller.
func (b *batch) strike(ctx context.Context, template store.CallerTemplate, r result) {
	paused, err := b.db.StrikeTemplate(ctx, template, "WeChat answered "+r.code+": "+r.message)
	b.fail(err)
	if paused {
		b.env.Log.Error(fmt.Sprintf("template %s is paused for one caller until an operator lifts that", template.TemplateID),
			"caller_id", template.CallerID, "errcode", r.code, "answer", r.message)
	}
}
