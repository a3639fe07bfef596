package functions

import (
	"github.com/sendonce/sendonce/functions/admin"
	"github.com/sendonce/sendonce/functions/claim"
	"github.com/sendonce/sendonce/functions/console"
	"github.com/sendonce/sendonce/functions/deliver"
	"github.com/sendonce/sendonce/functions/exporter"
	"github.com/sendonce/sendonce/functions/messages"
	"github.com/sendonce/sendonce/functions/relay"
	"github.com/sendonce/sendonce/functions/report"
	"github.com/sendonce/sendonce/functions/save"
	"github.com/sendonce/sendonce/functions/stream"
	"github.com/sendonce/sendonce/functions/submit"
	"github.com/sendonce/sendonce/functions/subscribe"
	"github.com/sendonce/sendonce/functions/sweep"
	"github.com/sendonce/sendonce/functions/webhooks"
	"github.com/sendonce/sendonce/functions/wechat"
	"github.com/sendonce/sendonce/shared/fn"
)

// Catalogue returns every function.
func Catalogue() []fn.Function {
	return []fn.Function{
		submit.Function,
		claim.Function,
		report.Function,
		subscribe.Function,
		messages.Function,
		stream.Function,
		webhooks.Function,
		admin.Function,
		console.Function.CallsRoutesOf(submit.Function, subscribe.Function, messages.Function, webhooks.Function, admin.Function),
		exporter.Function,
		sweep.Function,
		relay.Function,
		deliver.Function,
		save.Function,
		wechat.Function,
	}
}
