package wechat

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// stop ends the batch: no further attempt is started. For a spent quota or wrong settings stop also pauses the queue, before the
// rest of the batch is released, so that the released tasks wait for the end of the pause.
func (b *batch) stop(ctx context.Context, r result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	handled := slices.Contains(b.stopClasses, r.class)
	if b.stopClasses = append(b.stopClasses, r.class); handled {
		return
	}
	if b.stopReason == nil {
		b.stopReason = &result{r.verdict, r.code, "not started: " + r.message}
	}
	p := tasks.Pause{Queue: task.WeChatQueue, Reason: "WeChat returned " + r.code + ": " + r.message}
	switch r.class {
	case tokenRefused:
		b.env.Log.Warn("WeChat refused two access tokens, one after the other: check whether another program forces refreshes of this app's token", "response", task.MaskNumbers(r.message))
		return
	case quotaSpent:
		p.Until = quotaUntil(time.Now())
		b.env.Log.Warn("the app's daily quota at WeChat is spent: pausing the queue wechat", "until", p.Until, "response", task.MaskNumbers(r.message))
	case misconfigured:
		b.env.Log.Error("WeChat refuses all messages of this app: pausing the queue wechat; correct the app's settings, then resume the queue", "errcode", r.code, "response", task.MaskNumbers(r.message))
	default:
		return
	}
	if err := b.env.Tasks.PauseQueueAs(ctx, p, "wechat"); err != nil {
		b.errs = append(b.errs, err)
	}
	b.env.WakeSweepAt(p.Until)
}

// stopped returns the result of attempts that are not started, because the batch was stopped or the process is draining. It
// returns nil if attempts may start.
func (b *batch) stopped() *result {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopReason == nil && b.env.IsDraining() {
		return &result{verdict{class: away}, codeNotSent, "not started: this instance is ending"}
	}
	return b.stopReason
}

// strike counts an error that the template, or the caller's data or page, has caused. Three such errors without a success between
// them pause the template for this caller.
func (b *batch) strike(ctx context.Context, template subscribe.CallerTemplate, r result) {
	paused, err := b.env.Subscribe.StrikeTemplate(ctx, template, "WeChat returned "+r.code+": "+r.message)
	b.addError(err)
	if paused {
		b.env.Log.Error(fmt.Sprintf("template %s is paused for one caller until an operator resumes it", template.TemplateID),
			"caller_id", template.CallerID, "errcode", r.code, "response", task.MaskNumbers(r.message))
	}
}
