package wechat

import (
	"errors"
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// class is what an attempt came to, by what has to happen next.
type class int8

const (
	// sent: WeChat took the message. Report success.
	sent class = iota
	// transient: WeChat answered that it did not take it, and may another time.
	// Report a failure that should be retried.
	transient
	// throttled: too many calls in this minute. Release for retryAfter.
	throttled
	// away: nothing left this machine, or there was no token to send with. No
	// attempt is used. Release for retryAfter.
	away
	// tokenRefused: WeChat refused two tokens one after the other, so nothing was
	// sent. Release for retryAfter and say so in the log: most likely somebody
	// else forces refreshes of the same app's token.
	tokenRefused
	// dataRefused: WeChat will never take this message. Report a final failure.
	dataRefused
	// noConsent: the user did not accept the message, or no more of them. Report a
	// final failure that does not count against the failure rate; but a success, as
	// inferred, when the attempt before ended unknown: then that one used the grant.
	noConsent
	// quotaSpent: no more calls today. Release, and pause the queue until
	// nextMidnight.
	quotaSpent
	// misconfigured: no message can be sent until an operator acts. Release, pause
	// the queue and call the operator.
	misconfigured
	// unknown: the request left and no answer that says anything came. Report
	// unknown; the submitter's policy decides.
	unknown
)

// String is the class as logs and metrics name it.
func (c class) String() string {
	return [...]string{"sent", "transient", "throttled", "away", "token_refused", "data_refused", "no_consent", "quota_spent",
		"misconfigured", "unknown"}[c]
}

const (
	awayFor      = 15 * time.Second // until something that was not there is tried again
	throttledFor = time.Minute      // WeChat counts calls by the minute
	templateFor  = time.Hour        // until the next check whether a template is still paused; lifting the pause makes its messages due at once
	clockSlack   = time.Minute      // what WeChat's clock may be behind ours
)

// verdict is what an errcode of WeChat means.
type verdict struct {
	class           class
	retryAfter      time.Duration
	strikesTemplate bool // three in a row for one template and caller pause it for that caller
}

// verdicts is what WeChat documents of its errcodes.
var verdicts = map[int]verdict{
	0:     {class: sent},
	-1:    {class: transient}, // system busy
	40001: {class: tokenRefused, retryAfter: throttledFor},
	40014: {class: tokenRefused, retryAfter: throttledFor},
	42001: {class: tokenRefused, retryAfter: throttledFor}, // expired
	40003: {class: dataRefused},                            // openid
	40037: {class: dataRefused, strikesTemplate: true},     // template_id
	41030: {class: dataRefused, strikesTemplate: true},     // page
	47003: {class: dataRefused, strikesTemplate: true},     // data
	43101: {class: noConsent},
	45009: {class: quotaSpent},
	45011: {class: throttled, retryAfter: throttledFor},
	40013: {class: misconfigured}, // app id
	40125: {class: misconfigured}, // app secret
	40164: {class: misconfigured}, // our address is not in the app's list
	48001: {class: misconfigured}, // the app may not send subscribe messages
	48004: {class: misconfigured}, // nor may it any more
}

// classify gives the verdict on an errcode. One that is not known is transient:
// that WeChat answered it says that nothing was delivered, so a retry doubles
// nothing, a passing trouble loses nothing, and a lasting one ends with the
// task's retries.
func classify(errcode int) verdict {
	if v, known := verdicts[errcode]; known {
		return v
	}
	return verdict{class: transient}
}

// result is what came of an attempt to send one message.
type result struct {
	verdict
	code    string // WeChat's errcode, or one of the words below
	message string // for people: WeChat's errmsg with the id of the request, or what went wrong
}

// The codes of results that are not an errcode.
const (
	codeNotSent   = "not_sent"   // away: the request was never written
	codeNoToken   = "no_token"   // away: there was none to be had
	codeBadData   = "bad_data"   // dataRefused: the data is no JSON
	codeNoAnswer  = "no_answer"  // unknown: timeout, reset, cancelled
	codeBadAnswer = "bad_answer" // unknown: a status, a redirect or a body that WeChat does not answer with
	codePanic     = "panic"      // unknown: a mistake of ours

	codeAlreadySent    = task.AlreadySent  // dataRefused: another send of the message was delivered
	codeNoMessage      = "no_message"      // dataRefused: the task is none of a subscribe message
	codeTemplatePaused = "template_paused" // away: nothing is sent with this template now
)

func refusedBy(r *refusal) result {
	return result{classify(r.errcode), strconv.Itoa(r.errcode), r.errmsg}
}

// withoutToken is the result of each attempt for which token gave err. Nothing
// was sent, so no attempt is used.
func withoutToken(err error) result {
	none := result{verdict{class: away, retryAfter: awayFor}, codeNoToken, err.Error()}
	refused, ok := errors.AsType[*refusal](err)
	if !ok {
		return none
	}
	none.code = strconv.Itoa(refused.errcode)
	switch v := classify(refused.errcode); v.class {
	case throttled, quotaSpent, misconfigured:
		none.verdict = v
	case tokenRefused: // where no token is given, 40001 speaks of the secret
		none.verdict = verdict{class: misconfigured}
	}
	return none
}

// refusal is an errcode that WeChat answered.
type refusal struct {
	errcode int
	errmsg  string // without token and secret
}

// Error says both.
func (r *refusal) Error() string { return "errcode " + strconv.Itoa(r.errcode) + ": " + r.errmsg }

// quotaUntil is when the daily quota may be tried again: a little after midnight,
// lest a clock that is behind ours costs a whole day.
func quotaUntil(now time.Time) time.Time { return nextMidnight(now.Add(-clockSlack)).Add(clockSlack) }

// nextMidnight is when WeChat's daily quotas begin anew: 0:00 in Shanghai, which
// has been UTC+8 all year since 1991, so no time zone database is needed.
func nextMidnight(now time.Time) time.Time {
	shanghai := time.FixedZone("Asia/Shanghai", 8*60*60)
	y, m, d := now.In(shanghai).Date()
	return time.Date(y, m, d+1, 0, 0, 0, 0, shanghai)
}
