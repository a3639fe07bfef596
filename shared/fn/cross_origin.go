package fn

import (
	"fmt"
	"net/http"
	"strings"
	"unicode"

	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/text"
)

// crossOrigin keeps web pages of other origins from changing anything with the
// credentials that a browser has kept for this service. What is no browser sends
// neither Sec-Fetch-Site nor Origin, and is not affected.
type crossOrigin struct{ http.CrossOriginProtection }

func newCrossOrigin(trusted []string) (*crossOrigin, error) {
	c := &crossOrigin{}
	for _, origin := range trusted {
		if err := c.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("trusted origin: %w", err)
		}
	}
	return c, nil
}

// check refuses a request that a page of another origin makes; changes says that
// also a GET changes something.
//
// Over plain HTTP no browser says which site a GET is for, so one that changes
// something is refused to any browser there: it can POST instead.
func (c *crossOrigin) check(r *http.Request, changes bool) error {
	if changes && r.Method == http.MethodGet {
		if r.Header.Get("Sec-Fetch-Site") == "" && isBrowser(r.Header) {
			return task.Refuse(task.CodeForbidden, "a browser must use POST here")
		}
		judged := *r
		judged.Method = http.MethodPost
		r = &judged
	}
	if c.Check(r) != nil {
		return task.Refuse(task.CodeForbidden, fmt.Sprintf("pages of another origin (%s) may not call this; SENDONCE_STREAM_ORIGINS can allow an origin", text.Cut(text.Printable(originOf(r.Header), unicode.ReplacementChar), 64)))
	}
	return nil
}

// originOf says where a request comes from, for the message of a refusal.
func originOf(h http.Header) string {
	if origin := h.Get("Origin"); origin != "" {
		return origin
	}
	return "Sec-Fetch-Site: " + h.Get("Sec-Fetch-Site")
}

// isBrowser recognises two headers that all browsers send and other clients do not send both of. A page
// can empty Accept-Language, but not remove it.
func isBrowser(h http.Header) bool {
	return strings.HasPrefix(h.Get("User-Agent"), "Mozilla/") && len(h.Values("Accept-Language")) > 0
}
