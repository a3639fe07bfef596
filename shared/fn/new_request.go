package fn

import (
	"crypto/rand"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/text"
	"github.com/sendonce/sendonce/shared/trigger"
)

func newRequest(env *Env, w http.ResponseWriter, r *http.Request, p *mountedRoute) *request {
	req := &request{env: env, w: w, r: r, start: time.Now(), route: "none"}
	if p != nil {
		req.function, req.route, req.event = p.function, p.pattern, p.event
	}
	req.call = Call{
		RequestID: requestID(r.Header.Get("X-Request-Id")),
		SourceIP:  sourceAddress(env.Config.TrustedProxies, r.RemoteAddr, r.Header.Values("X-Forwarded-For")),
		UserAgent: text.Cut(r.UserAgent(), 500),
		env:       env,
		r:         r,
		header:    w.Header(),
		status:    http.StatusOK,
	}
	if p != nil {
		req.call.roles, req.call.withinQueues = p.roles, p.withinQueues
	}
	w.Header().Set("X-Request-Id", req.call.RequestID)
	if req.event {
		w.Header().Set(trigger.FunctionHeader, req.function)
	}
	return req
}

// requestID returns the caller's id, or a new id if the caller's is malformed or may contain a phone
// number. Phone numbers must not be logged.
func requestID(id string) string {
	if task.ValidName(id, 50) && (task.MaskNumbers(id) == id || isRandomID(id)) {
		return id
	}
	return rand.Text()
}

// mobileNumber matches mobile numbers of mainland China. About 1 % of random ids contain such a number, and are
// replaced. A match of any 11 digits in a row would replace 5 %.
var mobileNumber = regexp.MustCompile(`1[3-9][0-9]{9}`)

// isRandomID reports whether id is a UUID, or 16 or 32 hexadecimal digits, with a letter and without a
// mobileNumber. Its digits are then taken for random, not for a phone number.
func isRandomID(id string) bool {
	hex := strings.ReplaceAll(id, "-", "")
	hasForm := len(id) == 36 && len(hex) == 32 || len(id) == len(hex) && (len(hex) == 16 || len(hex) == 32)
	return hasForm && !mobileNumber.MatchString(id) && strings.Trim(hex, "0123456789abcdefABCDEF") == "" && strings.Trim(hex, "0123456789") != ""
}
