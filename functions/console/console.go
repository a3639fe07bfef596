// Package console serves the web pages of Sendonce. At /console operators see and repair what their roles and queues allow. A
// submitter sends SMS, and sees its own tasks, messages and webhooks.
//
// Pages are rendered on the server and work without JavaScript. A page reads and changes data only through the API (see
// fn.Visit.API), as the caller that has logged in. So a page can do only what the API allows this caller, and a change is
// audited as if the caller had called the API itself.
//
// html/template escapes by context, and adds 3.9 MB to the binary. Each template is parsed when its page is first shown, so
// other functions start as fast as without templates. github.com/a-h/templ would add 0.1 MB, but needs generated code.
package console

import (
	"embed"
	"maps"
	"net/http"

	"github.com/sendonce/sendonce/functions/console/apidocs"
	"github.com/sendonce/sendonce/shared/fn"
)

// Function serves the pages. CallsRoutesOf must name the functions of the API, because the pages call their routes.
var Function = fn.HTTP("console", New)

//go:embed static
var staticFiles embed.FS

// New runs once per cold start and does not touch the network.
func New(*fn.Env, struct{}) fn.Routes {
	routes := fn.Routes{
		"GET /{$}":                      fn.Page(redirectTo("/console")),
		"GET /console/{$}":              fn.Page(redirectTo("/console")),
		"GET /docs/{$}":                 fn.Page(redirectTo("/docs")),
		"GET /console/static/{file}":    fn.Page(serveStatic),
		"GET /console/login":            public((*page).loginForm),
		"POST /console/login":           public((*page).logIn),
		"POST /console/logout":          public((*page).logOut),
		"POST /console/language":        public((*page).setLanguage),
		"GET /console/{path...}":        private((*page).notFound),
		"GET /console":                  private((*page).overview),
		"GET /console/search":           private((*page).search),
		"GET /console/senders":          private((*page).senders),
		"GET /console/held":             private((*page).held),
		"GET /console/bulk":             private((*page).bulks),
		"POST /console/bulk":            private((*page).startBulk),
		"GET /console/bulk/new":         private((*page).newBulk),
		"GET /console/bulk/{id}":        private((*page).bulk),
		"POST /console/bulk/{id}/stop":  private((*page).stopBulk),
		"GET /console/tasks":            private((*page).tasks),
		"GET /console/tasks/{id}":       private((*page).task),
		"GET /console/tasks/{id}/{do}":  private((*page).backToTask), // a reload after a POST
		"POST /console/tasks/{id}/{do}": private((*page).changeTask),
		"GET /console/queues":           private((*page).queues),
		"POST /console/queues/pause":    private((*page).pauseQueue),
		"POST /console/queues/resume":   private((*page).resumeQueue),

		"GET /console/templates":            private((*page).smsTemplates),
		"GET /console/templates/new":        private((*page).newSMSTemplate),
		"POST /console/templates/new":       private((*page).addSMSTemplate),
		"GET /console/templates/{id}":       private((*page).smsTemplate),
		"POST /console/templates/{id}":      private((*page).editSMSTemplate),
		"POST /console/templates/{id}/{do}": private((*page).changeSMSTemplate),

		"GET /console/default-sms":            private((*page).defaultSMSes),
		"POST /console/default-sms":           private((*page).addDefaultSMS),
		"GET /console/default-sms/{id}":       private((*page).defaultSMS),
		"POST /console/default-sms/{id}":      private((*page).editDefaultSMS),
		"POST /console/default-sms/{id}/{do}": private((*page).changeDefaultSMS),

		"GET /console/blocked-words":              private((*page).blockedWords),
		"POST /console/blocked-words":             private((*page).addBlockedWord),
		"POST /console/blocked-words/{id}/remove": private((*page).removeBlockedWord),

		"GET /console/messages":                         private((*page).messages),
		"GET /console/messages/by-key":                  private((*page).messageByKey),
		"POST /console/messages/stuck/{do}":             private((*page).changeStuck),
		"GET /console/messages/{id}":                    private((*page).message),
		"POST /console/messages/{id}/{do}":              private((*page).changeMessage),
		"GET /console/messages/conversations":           private((*page).conversations),
		"POST /console/messages/conversations/reveal":   private((*page).revealConversation),
		"GET /console/subscribe":                        private((*page).subscribeMessages),
		"GET /console/subscribe/{id}":                   private((*page).subscribeMessage),
		"POST /console/subscribe/{id}/resend":           private((*page).resendSubscribe),
		"POST /console/subscribe/{id}/reveal":           private((*page).revealSubscribe),
		"GET /console/subscribe/statistics":             private((*page).subscribeStatistics),
		"GET /console/subscribe/templates":              private((*page).subscribeTemplates),
		"POST /console/subscribe/templates/resume":      private((*page).resumeSubscribeTemplate),
		"GET /console/webhooks":                         private((*page).endpoints),
		"POST /console/webhooks":                        private((*page).addEndpoint),
		"GET /console/webhooks/{id}":                    private((*page).endpoint),
		"POST /console/webhooks/{id}/{do}":              private((*page).changeEndpoint),
		"GET /console/webhooks/signing-secret":          private((*page).signingSecret),
		"POST /console/webhooks/signing-secret/{do}":    private((*page).changeSigningSecret),
		"GET /console/webhooks/deliveries":              private((*page).deliveries),
		"POST /console/webhooks/deliveries/resend":      private((*page).resendFailed),
		"GET /console/webhooks/deliveries/{id}":         private((*page).delivery),
		"POST /console/webhooks/deliveries/{id}/resend": private((*page).resendDelivery),

		"GET /console/callers":              private((*page).callers),
		"GET /console/callers/new":          private((*page).newCaller),
		"POST /console/callers/new":         private((*page).addCaller),
		"GET /console/callers/{id}":         private((*page).caller),
		"POST /console/callers/{id}":        private((*page).editCaller),
		"POST /console/callers/{id}/rotate": private((*page).rotateCaller),
		"POST /console/callers/{id}/revoke": private((*page).revokeCaller),

		"GET /console/alerts":                     private((*page).alerts),
		"GET /console/dead-letters":               private((*page).deadLetters),
		"POST /console/dead-letters/{id}/dismiss": private((*page).dismissDeadLetter),
		"GET /console/audit":                      private((*page).audit),

		"GET /console/send":          private((*page).sendForm),
		"POST /console/send":         private((*page).send),
		"POST /console/send/preview": private((*page).previewSend),
	}
	maps.Copy(routes, apidocs.Routes())
	return routes
}

func redirectTo(path string) func(http.ResponseWriter, *fn.Visit) {
	return func(w http.ResponseWriter, v *fn.Visit) { http.Redirect(w, v.Request, path, http.StatusSeeOther) }
}

// serveStatic serves the style sheet, the script and the icon. The pages of the console link to them with ?v=version, so a
// browser does not use the cached files of an older release.
func serveStatic(w http.ResponseWriter, v *fn.Visit) {
	apidocs.SetSecurityHeaders(w.Header(), "'self'")
	w.Header().Set("Cache-Control", "public, max-age=86400")
	http.ServeFileFS(w, v.Request, staticFiles, "static/"+v.PathValue("file"))
}
