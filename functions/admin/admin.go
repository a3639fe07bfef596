// Package admin is the function that operators call, all under /api/v1/admin:
// templates, default content, statistics, the list of tasks and the history of
// each, repair by hand, pauses, blocked words, callers, who did what by hand, alerts, and
// the events that no function takes.
//
// Every change is committed together with a row of operator_actions that tells
// who made it and what was there before; a change that changes nothing is not
// told. A change of a caller counts everywhere within a second where the instances
// are connected to NATS, and within 60 s, as long as an instance remembers whom it
// let in, where they are not.
//
// An admin with queues is one of these queues alone. It may call what is marked with
// WithinQueues and nothing else here: the tasks, pauses and alerts of its queues, the
// callers that are named after it (ops.phone for ops) and may do no more than it may
// itself, and, to read, the templates, which are common to all submitters. A foreign
// task or caller does not exist for it. The callers that it makes use its quotas and shares,
// and are revoked and narrowed with it.
package admin

import (
	"context"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Function is this package's line in the catalogue.
var Function = fn.HTTP("admin", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.Routes {
	d := &desk{db: env.DB(), ready: env.WakeClaims, due: env.WakeSweepAt, username: env.Config.Username, changed: env.CallersChanged, phones: env.Config.PhoneCountry}
	const root = "/api/v1/admin/"
	return fn.Routes{
		"POST " + root + "template":                 fn.JSON(fn.Admin, d.addTemplate),
		"GET " + root + "template":                  fn.List(fn.Admin, d.templates).WithinQueues(),
		"POST " + root + "template/preview":         fn.JSON(fn.Admin, d.previewDraft).WithinQueues(),
		"GET " + root + "template/{id}":             fn.List(fn.Admin, d.template).WithinQueues(),
		"PUT " + root + "template/{id}":             fn.JSON(fn.Admin, d.editTemplate),
		"POST " + root + "template/{id}/activate":   fn.Query(fn.Admin, d.activateTemplate),
		"POST " + root + "template/{id}/deactivate": fn.Query(fn.Admin, d.deactivateTemplate),
		"POST " + root + "template/{id}/preview":    fn.JSON(fn.Admin, d.previewTemplate).WithinQueues(),

		"POST " + root + "default-sms":            fn.JSON(fn.Admin, d.addDefault),
		"GET " + root + "default-sms":             fn.List(fn.Admin, d.defaults),
		"GET " + root + "default-sms/{id}":        fn.List(fn.Admin, d.defaultSMS),
		"PUT " + root + "default-sms/{id}":        fn.JSON(fn.Admin, d.editDefault),
		"POST " + root + "default-sms/{id}/reset": fn.Query(fn.Admin, d.resetDefault),
		"DELETE " + root + "default-sms/{id}":     fn.Query(fn.Admin, d.deleteDefault),

		"GET " + root + "statistics":               fn.List(fn.Admin, d.statistics).Timeout(readTimeout),
		"GET " + root + "tasks":                    fn.List(fn.Admin, d.tasks).Timeout(readTimeout).WithinQueues(),
		"GET " + root + "tasks/{task_id}":          fn.Query(fn.Admin, d.task).WithinQueues(),
		"POST " + root + "tasks/{task_id}/retry":   fn.Query(fn.Admin, d.retry).WithinQueues(),
		"POST " + root + "tasks/{task_id}/cancel":  fn.Query(fn.Admin, d.cancel).WithinQueues(),
		"POST " + root + "tasks/{task_id}/resolve": fn.JSON(fn.Admin, d.resolve).WithinQueues(),

		"GET " + root + "queues":                                    fn.List(fn.Admin, d.queues).Timeout(readTimeout).WithinQueues(),
		"POST " + root + "queues/{queue}/pause":                     fn.JSON(fn.Admin, d.pauseQueue).WithinQueues(),
		"POST " + root + "queues/{queue}/resume":                    fn.JSON(fn.Admin, d.resumeQueue).WithinQueues(),
		"GET " + root + "subscribe-templates":                       fn.List(fn.Admin, d.subscribeTemplates).WithinQueues(),
		"POST " + root + "subscribe-templates/{template_id}/resume": fn.JSON(fn.Admin, d.resumeTemplate).WithinQueues(),

		"GET " + root + "blocked-words":         fn.List(fn.Admin, d.blockedWords),
		"POST " + root + "blocked-words":        fn.JSON(fn.Admin, d.addBlockedWord),
		"DELETE " + root + "blocked-words/{id}": fn.Query(fn.Admin, d.removeBlockedWord),

		"POST " + root + "callers":             fn.JSON(fn.Admin, d.addCaller).WithinQueues(),
		"GET " + root + "callers":              fn.List(fn.Admin, d.callers).WithinQueues(),
		"GET " + root + "callers/{id}":         fn.List(fn.Admin, d.caller).WithinQueues(),
		"PUT " + root + "callers/{id}":         fn.JSON(fn.Admin, d.updateCaller).WithinQueues(),
		"POST " + root + "callers/{id}/rotate": fn.Query(fn.Admin, d.rotateCaller).WithinQueues(),
		"POST " + root + "callers/{id}/revoke": fn.Query(fn.Admin, d.revokeCaller).WithinQueues(),

		"GET " + root + "actions": fn.List(fn.Admin, d.actions),

		"GET " + root + "alerts": fn.List(fn.Admin, d.alerts).WithinQueues(),

		"GET " + root + "dead-letters":               fn.List(fn.Admin, d.deadLetters),
		"POST " + root + "dead-letters/{id}/dismiss": fn.JSON(fn.Admin, d.dismiss),
	}
}

// readTimeout is that of the database role that reads.
const readTimeout = 15 * time.Second

const maxReason = 500

// desk is where an operator stands.
type desk struct {
	db       *store.DB
	ready    func(queue string, n int)                    // tells waiting claims
	due      func(at time.Time)                           // has sweep woken
	username string                                       // of the built-in admin, which is no stored caller
	changed  func(ctx context.Context, callers ...string) // makes every process look callers up anew
	phones   task.Country
}

// nothing is the request of a route that takes none.
type nothing struct{}

// rules are fn's with those that only an operator needs.
type rules struct{ decode.Rules }

// listRequest is api.ListRequest with its rules.
type listRequest api.ListRequest

// Validate names every field whose value is not acceptable.
func (r *listRequest) Validate() []task.Field {
	var bad rules
	bad.Page(r.Limit)
	return bad.Rules
}
