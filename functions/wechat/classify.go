package wechat

import (
	"errors"
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// class is the kind of result of an attempt. The class decides what happens next.
type class int8

const (
	// sent: WeChat accepted the message. Report success.
	sent class = iota
	// transient: WeChat did not accept the message, and may accept it later. Report a failure that should be retried.
	transient
	// throttled: too many calls in this minute. Release for retryAfter.
	throttled
	// away: nothing was sent, because there was no connection or no token, the database failed, the template is paused, or the
	// process is draining. Release for retryAfter.
	away
	// tokenRefused: WeChat refused two tokens in a row, so nothing was sent. Release for retryAfter and log a warning: most likely
	// another program forces refreshes of the same app's token.
	tokenRefused
	// dataRefused: WeChat will never accept this message, or nothing is left to send (codeAlreadySent, codeNoMessage). Report a final
	// failure.
	dataRefused
	// noConsent: the user has not consented to this message. Report a final failure that does not count in the failure rate. If
	// the outcome of an earlier attempt is unknown, that attempt may have used the consent: report a final unknown.
	noConsent
	// quotaSpent: no more calls today. Release, and pause the queue until quotaUntil.
	quotaSpent
	// misconfigured: no message can be sent until an operator acts. Release, pause the queue and log an error.
	misconfigured
	// unknown: a part of the request or all of it was written, and no valid response came. Report unknown; on_unknown decides.
	unknown
)

// String returns the name of the class in logs and metrics.
func (c class) String() string {
	return [...]string{"sent", "transient", "throttled", "away", "token_refused", "data_refused", "no_consent", "quota_spent",
		"misconfigured", "unknown"}[c]
}

const (
	awayDelay           = 15 * time.Second // until WeChat or the database is tried again after an error
	throttledDelay      = time.Minute      // because WeChat limits the calls per minute
	pausedTemplateDelay = time.Hour        // on average, until a message of a paused template is tried again; a resume makes it due at once
	clockSlack          = time.Minute      // WeChat's clock may be behind ours by this much
)

// verdict is what an errcode of WeChat means.
type verdict struct {
	class           class
	retryAfter      time.Duration
	strikesTemplate bool // counts as an error of the template: see batch.strike
}

// verdicts has the errcodes that WeChat documents for tokens and subscribe messages.
var verdicts = map[int]verdict{
	0:     {class: sent},
	-1:    {class: transient}, // system busy
	40001: {class: tokenRefused, retryAfter: throttledDelay},
	40014: {class: tokenRefused, retryAfter: throttledDelay},
	42001: {class: tokenRefused, retryAfter: throttledDelay}, // expired
	40003: {class: dataRefused},                              // openid
	40037: {class: dataRefused, strikesTemplate: true},       // template_id
	41030: {class: dataRefused, strikesTemplate: true},       // page
	47003: {class: dataRefused, strikesTemplate: true},       // data
	43101: {class: noConsent},
	45009: {class: quotaSpent},
	45011: {class: throttled, retryAfter: throttledDelay},
	40013: {class: misconfigured}, // app id
	40125: {class: misconfigured}, // app secret
	40164: {class: misconfigured}, // our IP address is not in the app's list
	48001: {class: misconfigured}, // the app may not send subscribe messages
	48004: {class: misconfigured}, // the app's permission was withdrawn
}

// classify returns the verdict on an errcode. An errcode that is not in verdicts is transient: nothing was delivered, so a retry
// cannot send the message twice, and the number of retries is limited.
func classify(errcode int) verdict {
	if v, known := verdicts[errcode]; known {
		return v
	}
	return verdict{class: transient}
}

// result is the result of an attempt to send one message.
type result struct {
	verdict
	code    string // WeChat's errcode, or a code such as codeNotSent
	message string // for people: WeChat's errmsg with the id of the request, or the error
}

// The codes of results without an errcode.
const (
	codeNotSent     = "not_sent"   // away: no part of the request was written
	codeNoToken     = "no_token"   // away: no token could be obtained
	codeBadData     = "bad_data"   // dataRefused: the data is not valid JSON
	codeNoResponse  = "no_answer"  // unknown: timeout, reset, cancelled
	codeBadResponse = "bad_answer" // unknown: a status, a redirect or a body that is not from WeChat
	codePanic       = "panic"      // unknown: a defect in this program

	codeAlreadySent    = task.AlreadySent  // dataRefused: another send of the message was delivered
	codeNoMessage      = "no_message"      // dataRefused: the task has no subscribe message
	codeTemplatePaused = "template_paused" // away: nothing is sent with this template now
)

// errcodeResult returns the result of a response to a message; errcode 0 is success. errmsg has no token and no secret.
func errcodeResult(errcode int, errmsg string) result {
	return result{classify(errcode), strconv.Itoa(errcode), errmsg}
}

// tokenErrorResult returns the result of an attempt that got no token because of err. Nothing was sent, so the task is released.
func tokenErrorResult(err error) result {
	r := result{verdict{class: away, retryAfter: awayDelay}, codeNoToken, err.Error()}
	refused, ok := errors.AsType[*refusal](err)
	if !ok {
		return r
	}
	r.code = strconv.Itoa(refused.errcode)
	switch v := classify(refused.errcode); v.class {
	case throttled, quotaSpent, misconfigured:
		r.verdict = v
	case tokenRefused: // in the response to a token request, 40001 means a wrong secret
		r.verdict = verdict{class: misconfigured}
	}
	return r
}

// refusal is the error of a token request that WeChat refused with an errcode.
type refusal struct {
	errcode int
	errmsg  string // without token and secret
}

func (r *refusal) Error() string { return "errcode " + strconv.Itoa(r.errcode) + ": " + r.errmsg }

// quotaUntil returns the end of a pause for a spent quota. WeChat resets its daily quotas at 0:00 in Shanghai, which is UTC+8 all
// year. The pause ends clockSlack later: a call before the reset would be refused, and would pause the queue for another day.
func quotaUntil(now time.Time) time.Time {
	shanghai := time.FixedZone("Asia/Shanghai", 8*60*60)
	y, m, d := now.Add(-clockSlack).In(shanghai).Date()
	return time.Date(y, m, d+1, 0, 0, 0, 0, shanghai).Add(clockSlack)
}
