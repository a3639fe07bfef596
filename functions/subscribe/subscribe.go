// Package subscribe is the function that services call to have WeChat subscribe messages sent. Business event, type of
// template and user together identify a message, and a message that was sent is not sent again:
//
//	POST /api/v1/subscribe/send
//	GET  /api/v1/subscribe/sent (has this message been sent?)
//	GET  /api/v1/subscribe/logs, /api/v1/subscribe/{id}, /api/v1/subscribe/messages
//	GET  /api/v1/subscribe/statistics, /api/v1/subscribe/failures
//	POST /api/v1/subscribe/{id}/resend
//
// A service that calls WeChat itself first records the message, then calls WeChat, and then reports the outcome:
//
//	POST /api/v1/subscribe/record
//	POST /api/v1/subscribe/{id}/status
//
// The unique index uk_business_template_receiver decides whether a request to send or record is a repeat. A repeat is
// skipped if the message was sent, is being sent, is held, or waits for its first attempt. If the message failed, it is
// sent again under the same id, even if it already waits for a retry.
//
// All callers share the keys of that index. If a caller submits a message that another caller has submitted before, the
// response depends on who submits it now:
//   - An admin that is not limited to queues gets the same response as for its own message: a failed message is sent
//     again.
//   - Any other caller with a list of business types is refused, whatever the state of the message.
//   - Any other caller without such a list is refused if the message failed. Otherwise its request is skipped, and the
//     response does not say whether the data differs.
package subscribe

import (
	"time"

	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

// Config has the function's settings.
type Config struct {
	MaxRetries   int `envconfig:"MAX_RETRY_COUNT" default:"3" desc:"retries of a task that does not set max_retries, 0 to 10; 3 = at most four claims"`
	LeaseMinutes int `envconfig:"PROCESSING_TIMEOUT_MINUTES" default:"10" desc:"lease of a claim that does not set lease_seconds, 1 to 60 minutes; when it has expired the task is a zombie"`
}

// Validate names every setting whose value is not acceptable.
func (c *Config) Validate() []task.Field {
	var bad decode.BadFields
	bad.Between("MAX_RETRY_COUNT", &c.MaxRetries, 0, task.MaxRetriesCap)
	bad.Between("PROCESSING_TIMEOUT_MINUTES", &c.LeaseMinutes, 1, 60)
	return bad
}

// Function serves the routes of WeChat subscribe messages.
var Function = fn.HTTP("subscribe", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) fn.Routes {
	h := &handlers{env: env, maxRetries: cfg.MaxRetries, lease: time.Duration(cfg.LeaseMinutes) * time.Minute}
	return fn.Routes{
		"POST " + root + "send":        fn.JSON(fn.Submitter, h.send),
		"POST " + root + "record":      fn.JSON(fn.Submitter, h.record),
		"POST " + root + "{id}/status": fn.JSON(fn.Submitter, h.status).MaxBody(maxStatusBody),

		"GET " + root + "sent":       fn.Read(fn.Submitter, h.wasSent),
		"GET " + root + "logs":       fn.Read(fn.Submitter, h.logs).Or(fn.Viewer),
		"GET " + root + "messages":   fn.Read(fn.Submitter, h.list).Or(fn.Viewer).Timeout(readTimeout),
		"GET " + root + "{id}":       fn.Read(fn.Submitter, h.detail).Or(fn.Viewer),
		"GET " + root + "statistics": fn.Read(fn.Submitter, h.statistics).Or(fn.Viewer),
		"GET " + root + "failures":   fn.Read(fn.Submitter, h.failures).Or(fn.Viewer),

		"POST " + root + "{id}/resend": fn.Parameters(fn.Admin, h.resend),
	}
}

const (
	maxStatusBody = 1 << 20 // large, because a long error_message is accepted, and truncated when it is stored

	readTimeout = 15 * time.Second // the statement timeout of the database role for reads
)
