// Package console is the function for people with a browser: an operator sees and repairs everything at /console,
// and a submitter sees its own tasks, messages and webhooks there.
//
// Pages are rendered on the server and work without JavaScript. A page shows and changes things only by calling
// the API in the same process as the caller that has logged in (see fn.Visit.API), so it can do nothing that the
// API does not allow to that caller, and each change is in the audit log under its name.
//
// Templates are those of html/template, which escapes by context. It adds 3.9 MB to a binary of 17 MB, and
// nothing to the start of other functions: a template is parsed at its first page. github.com/a-h/templ would add 0.1 MB,
// but needs generated code.
package console

import (
	"embed"
	"maps"
	"net/http"

	"github.com/sendonce/sendonce/functions/console/apidocs"
	"github.com/sendonce/sendonce/shared/fn"
)

// Function serves the pages. The functions of the API must be served by the same handler.
var Function = fn.HTTP("console", New)

//go:embed static
var staticFiles embed.FS

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.Routes {
	s := &site{log: env.Log}
	routes := fn.Routes{
		"GET /{$}":                      fn.Page(redirectTo("/console")),
		"GET /console/{$}":              fn.Page(redirectTo("/console")),
		"GET /docs/{$}":                 fn.Page(redirectTo("/docs")),
		"GET /console/static/{file}":    fn.Page(serveStatic),
		"GET /console/login":            s.public(s.loginForm),
		"POST /console/login":           s.public(s.logIn),
		"POST /console/logout":          s.public(s.logOut),
		"POST /console/language":        s.public(s.setLanguage),
		"GET /console/{path...}":        s.page(s.notFound),
		"GET /console":                  s.page(s.overview),
		"GET /console/search":           s.page(s.search),
		"GET /console/senders":          s.page(s.senders),
		"GET /console/held":             s.page(s.held),
		"GET /console/bulk":             s.page(s.bulks),
		"POST /console/bulk":            s.page(s.startBulk),
		"GET /console/bulk/new":         s.page(s.newBulk),
		"GET /console/bulk/{id}":        s.page(s.bulk),
		"POST /console/bulk/{id}/stop":  s.page(s.stopBulk),
		"GET /console/tasks":            s.page(s.tasks),
		"GET /console/tasks/{id}":       s.page(s.task),
		"GET /console/tasks/{id}/{do}":  s.page(s.backToTask), // after a language was chosen, or a page was loaded again
		"POST /console/tasks/{id}/{do}": s.page(s.changeTask),
		"GET /console/queues":           s.page(s.queues),
		"POST /console/queues/pause":    s.page(s.pauseQueue),
		"POST /console/queues/resume":   s.page(s.resumeQueue),

		"GET /console/templates":            s.page(s.smsTemplates),
		"GET /console/templates/new":        s.page(s.newSMSTemplate),
		"POST /console/templates/new":       s.page(s.addSMSTemplate),
		"GET /console/templates/{id}":       s.page(s.smsTemplate),
		"POST /console/templates/{id}":      s.page(s.editSMSTemplate),
		"POST /console/templates/{id}/{do}": s.page(s.changeSMSTemplate),

		"GET /console/default-sms":            s.page(s.defaultSMSes),
		"POST /console/default-sms":           s.page(s.addDefaultSMS),
		"GET /console/default-sms/{id}":       s.page(s.defaultSMS),
		"POST /console/default-sms/{id}":      s.page(s.editDefaultSMS),
		"POST /console/default-sms/{id}/{do}": s.page(s.changeDefaultSMS),

		"GET /console/blocked-words":              s.page(s.blockedWords),
		"POST /console/blocked-words":             s.page(s.addBlockedWord),
		"POST /console/blocked-words/{id}/remove": s.page(s.removeBlockedWord),

		"GET /console/messages":                         s.page(s.messages),
		"GET /console/messages/by-key":                  s.page(s.messageByKey),
		"POST /console/messages/stuck/{do}":             s.page(s.changeStuck),
		"GET /console/messages/{id}":                    s.page(s.message),
		"POST /console/messages/{id}/{do}":              s.page(s.changeMessage),
		"GET /console/messages/conversations":           s.page(s.conversations),
		"POST /console/messages/conversations/reveal":   s.page(s.revealConversation),
		"GET /console/subscribe":                        s.page(s.subscribeMessages),
		"GET /console/subscribe/{id}":                   s.page(s.subscribeMessage),
		"POST /console/subscribe/{id}/resend":           s.page(s.resendSubscribe),
		"POST /console/subscribe/{id}/reveal":           s.page(s.revealSubscribe),
		"GET /console/subscribe/statistics":             s.page(s.subscribeStatistics),
		"GET /console/subscribe/templates":              s.page(s.subscribeTemplates),
		"POST /console/subscribe/templates/resume":      s.page(s.resumeSubscribeTemplate),
		"GET /console/webhooks":                         s.page(s.endpoints),
		"POST /console/webhooks":                        s.page(s.addEndpoint),
		"GET /console/webhooks/{id}":                    s.page(s.endpoint),
		"POST /console/webhooks/{id}/{do}":              s.page(s.changeEndpoint),
		"GET /console/webhooks/signing-secret":          s.page(s.signingSecret),
		"POST /console/webhooks/signing-secret/{do}":    s.page(s.changeSigningSecret),
		"GET /console/webhooks/deliveries":              s.page(s.deliveries),
		"POST /console/webhooks/deliveries/resend":      s.page(s.resendFailed),
		"GET /console/webhooks/deliveries/{id}":         s.page(s.delivery),
		"POST /console/webhooks/deliveries/{id}/resend": s.page(s.resendDelivery),

		"GET /console/callers":              s.page(s.callers),
		"GET /console/callers/new":          s.page(s.newCaller),
		"POST /console/callers/new":         s.page(s.addCaller),
		"GET /console/callers/{id}":         s.page(s.caller),
		"POST /console/callers/{id}":        s.page(s.changeCaller),
		"POST /console/callers/{id}/rotate": s.page(s.rotateCaller),
		"POST /console/callers/{id}/revoke": s.page(s.revokeCaller),

		"GET /console/alerts":                     s.page(s.alerts),
		"GET /console/dead-letters":               s.page(s.deadLetters),
		"POST /console/dead-letters/{id}/dismiss": s.page(s.dismissDeadLetter),
		"GET /console/audit":                      s.page(s.audit),

		"GET /console/send":          s.page(s.sendForm),
		"POST /console/send":         s.page(s.send),
		"POST /console/send/preview": s.page(s.previewSend),
	}
	maps.Copy(routes, apidocs.Routes())
	return routes
}

func redirectTo(path string) func(http.ResponseWriter, *fn.Visit) {
	return func(w http.ResponseWriter, v *fn.Visit) { http.Redirect(w, v.Request, path, http.StatusSeeOther) }
}

// serveStatic serves the style sheet and the script. Their paths have the version, so that a new release is
// seen at once.
func serveStatic(w http.ResponseWriter, v *fn.Visit) {
	setSecurityHeaders(w)
	w.Header().Set("Cache-Control", "public, max-age=86400")
	http.ServeFileFS(w, v.Request, staticFiles, "static/"+v.PathValue("file"))
}

// setSecurityHeaders forbids everything that the pages do not need: other origins, inline scripts and styles, frames.
func setSecurityHeaders(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
}
