// Package admin is the function that operators call. All its routes are below /api/v1/admin. Viewers may call all GET routes.
// Submitters may call search, which finds only their own objects, and may read their own tasks. Viewers and submitters may also
// reveal a task that they may read: the response has its full phone number and content, and the reveal is recorded.
//
// Every change is committed together with a row of operator_actions, which has the operator and the values before and after the
// change. A change without effect adds no row. An instance that is connected to NATS applies a change to a caller within a second.
// Any other instance applies it within 60 s, when its cached caller expires.
//
// A caller with queues may call only the routes with WithinQueues. An admin with queues is a limited operator. It administers the
// tasks of its queues and the pauses of its queues, and reads their alerts. It also administers the callers whose names begin with
// its own name and a dot (ops.phone for ops) and whose permissions are within its own. It may read and preview the SMS templates,
// which all submitters share; with the queue wechat, it may also read and resume the templates of subscribe messages. The error is
// not_found for other tasks and callers, and forbidden for other queues.
//
// A caller belongs to the limited operator that created it. If none did, it belongs to the first one that replaced its token or
// granted it more. The caller shares the quotas of this operator. If the operator is revoked or loses permissions, so does the caller.
//
// A dead letter is an event that a function cannot process, however often it is delivered.
package admin

import "github.com/sendonce/sendonce/shared/fn"

// Function serves the routes below /api/v1/admin.
var Function = fn.HTTP("admin", New)

// New runs once per cold start and does not touch the network. A route with fn.Read reads with the read role of the database.
func New(env *fn.Env, _ struct{}) fn.Routes {
	h := &handlers{env}
	const root = "/api/v1/admin/"
	return fn.Routes{
		"POST " + root + "template":                 fn.JSON(fn.Admin, h.addTemplate),
		"GET " + root + "template":                  fn.Read(fn.Admin, h.templates).Or(fn.Viewer).WithinQueues(),
		"POST " + root + "template/preview":         fn.JSON(fn.Admin, h.previewUnstored).WithinQueues(),
		"GET " + root + "template/{id}":             fn.Read(fn.Admin, fn.WithID(fn.RowID, "template", h.template)).Or(fn.Viewer).WithinQueues(),
		"PUT " + root + "template/{id}":             fn.JSON(fn.Admin, fn.WithID(fn.RowID, "template", h.editTemplate)),
		"POST " + root + "template/{id}/activate":   fn.Parameters(fn.Admin, fn.WithID(fn.RowID, "template", h.activateTemplate)),
		"POST " + root + "template/{id}/deactivate": fn.Parameters(fn.Admin, fn.WithID(fn.RowID, "template", h.deactivateTemplate)),
		"POST " + root + "template/{id}/preview":    fn.JSON(fn.Admin, fn.WithID(fn.RowID, "template", h.previewTemplate)).WithinQueues(),

		"POST " + root + "default-sms":            fn.JSON(fn.Admin, h.addDefault),
		"GET " + root + "default-sms":             fn.Read(fn.Admin, h.defaults).Or(fn.Viewer),
		"GET " + root + "default-sms/{id}":        fn.Read(fn.Admin, fn.WithID(fn.RowID, "default content", h.defaultSMS)).Or(fn.Viewer),
		"PUT " + root + "default-sms/{id}":        fn.JSON(fn.Admin, fn.WithID(fn.RowID, "default content", h.editDefault)),
		"POST " + root + "default-sms/{id}/reset": fn.Parameters(fn.Admin, fn.WithID(fn.RowID, "default content", h.resetDefault)),
		"DELETE " + root + "default-sms/{id}":     fn.Parameters(fn.Admin, fn.WithID(fn.RowID, "default content", h.deleteDefault)),

		"GET " + root + "statistics":               fn.Read(fn.Admin, h.statistics).Or(fn.Viewer).Timeout(readTimeout),
		"GET " + root + "overview":                 fn.Read(fn.Admin, h.overview).Or(fn.Viewer).Timeout(readTimeout).WithinQueues(),
		"GET " + root + "search":                   fn.Read(fn.Admin, h.search).Or(fn.Viewer).Or(fn.Submitter).Timeout(readTimeout).WithinQueues(),
		"GET " + root + "tasks":                    fn.Read(fn.Admin, h.tasks).Or(fn.Viewer).Or(fn.Submitter).Timeout(readTimeout).WithinQueues(),
		"GET " + root + "tasks/{task_id}":          fn.Parameters(fn.Admin, h.task).Or(fn.Viewer).Or(fn.Submitter).WithinQueues(),
		"POST " + root + "tasks/{task_id}/reveal":  fn.Parameters(fn.Admin, h.reveal).Or(fn.Viewer).Or(fn.Submitter).WithinQueues(),
		"POST " + root + "tasks/{task_id}/retry":   fn.Parameters(fn.Admin, h.retry).WithinQueues(),
		"POST " + root + "tasks/{task_id}/cancel":  fn.Parameters(fn.Admin, h.cancel).WithinQueues(),
		"POST " + root + "tasks/{task_id}/resolve": fn.JSON(fn.Admin, h.resolve).WithinQueues(),

		"POST " + root + "bulk/preview":   fn.JSON(fn.Admin, h.previewBulk).Timeout(bulkTimeout).WithinQueues(),
		"POST " + root + "bulk":           fn.JSON(fn.Admin, h.startBulk).Timeout(bulkTimeout).WithinQueues(),
		"GET " + root + "bulk":            fn.Read(fn.Admin, h.bulks).Or(fn.Viewer).WithinQueues(),
		"GET " + root + "bulk/{id}":       fn.Parameters(fn.Admin, h.bulk).Or(fn.Viewer).WithinQueues(),
		"POST " + root + "bulk/{id}/stop": fn.Parameters(fn.Admin, h.stopBulk).WithinQueues(),

		"GET " + root + "queues":                                    fn.Read(fn.Admin, h.queues).Or(fn.Viewer).Timeout(readTimeout).WithinQueues(),
		"POST " + root + "queues/{queue}/pause":                     fn.JSON(fn.Admin, h.pauseQueue).WithinQueues(),
		"POST " + root + "queues/{queue}/resume":                    fn.JSON(fn.Admin, h.resumeQueue).WithinQueues(),
		"GET " + root + "subscribe-templates":                       fn.Read(fn.Admin, h.subscribeTemplates).Or(fn.Viewer).WithinQueues(),
		"POST " + root + "subscribe-templates/{template_id}/resume": fn.JSON(fn.Admin, h.resumeSubscribeTemplate).WithinQueues(),

		"GET " + root + "blocked-words":         fn.Read(fn.Admin, h.blockedWords).Or(fn.Viewer),
		"POST " + root + "blocked-words":        fn.JSON(fn.Admin, h.addBlockedWord),
		"DELETE " + root + "blocked-words/{id}": fn.Parameters(fn.Admin, fn.WithID(fn.RowID, "blocked word", h.removeBlockedWord)),

		"POST " + root + "callers":             fn.JSON(fn.Admin, h.addCaller).WithinQueues(),
		"GET " + root + "callers":              fn.Read(fn.Admin, h.callers).Or(fn.Viewer).WithinQueues(),
		"GET " + root + "callers/names":        fn.Read(fn.Admin, h.callerNames).Or(fn.Viewer).WithinQueues(),
		"GET " + root + "callers/{id}":         fn.Read(fn.Admin, fn.WithID(fn.RowID, "caller", h.caller)).Or(fn.Viewer).WithinQueues(),
		"PUT " + root + "callers/{id}":         fn.JSON(fn.Admin, fn.WithID(fn.RowID, "caller", h.updateCaller)).WithinQueues(),
		"POST " + root + "callers/{id}/rotate": fn.Parameters(fn.Admin, fn.WithID(fn.RowID, "caller", h.rotateCaller)).WithinQueues(),
		"POST " + root + "callers/{id}/revoke": fn.Parameters(fn.Admin, fn.WithID(fn.RowID, "caller", h.revokeCaller)).WithinQueues(),

		"GET " + root + "actions": fn.Read(fn.Admin, h.actions).Or(fn.Viewer),

		"GET " + root + "alerts": fn.Read(fn.Admin, h.alerts).Or(fn.Viewer).WithinQueues(),

		"GET " + root + "dead-letters":               fn.Read(fn.Admin, h.deadLetters).Or(fn.Viewer),
		"POST " + root + "dead-letters/{id}/dismiss": fn.JSON(fn.Admin, fn.WithID(fn.RowID, "dead letter", h.dismiss)),
	}
}
