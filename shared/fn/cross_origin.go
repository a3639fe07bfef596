package fn

import (
	"fmt"
	"net/http"
	"strings"
	"unicode"

	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/text"
)

// originCheck keeps web pages of other origins from changing anything with the credentials that a
// browser stores for this service. It never refuses a client that is not a browser, since such a client
// sends neither Sec-Fetch-Site nor Origin.
type originCheck struct{ http.CrossOriginProtection }

func newOriginCheck(trusted []string) (*originCheck, error) {
	c := &originCheck{}
	for _, origin := range trusted {
		if err := c.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("trusted origin: %w", err)
		}
	}
	return c, nil
}

// check refuses a request of a page of another origin, unless the origin is trusted or the request
// is a GET that changes nothing. changes is true if a GET of the route changes something.
//
// Over plain HTTP, the GET of a browser does not show which page it comes from. So over plain HTTP, check
// refuses a GET that changes something to every browser, which can use POST instead.
func (c *originCheck) check(r *http.Request, changes bool) error {
	if changes && r.Method == http.MethodGet {
		if r.Header.Get("Sec-Fetch-Site") == "" && isBrowser(r.Header) {
			return task.Refuse(task.CodeForbidden, "a browser must use POST here")
		}
		asPost := *r
		asPost.Method = http.MethodPost
		r = &asPost
	}
	if c.Check(r) != nil {
		return task.Refuse(task.CodeForbidden, fmt.Sprintf("pages of another origin (%s) may not call this; SENDONCE_STREAM_ORIGINS can allow an origin to call the API", text.Cut(text.Printable(originOf(r.Header), unicode.ReplacementChar), 64)))
	}
	return nil
}

// originOf returns where a request comes from, for an error message.
func originOf(h http.Header) string {
	if origin := h.Get("Origin"); origin != "" {
		return origin
	}
	return "Sec-Fetch-Site: " + h.Get("Sec-Fetch-Site")
}

// isBrowser reports whether a request has two headers that all browsers send, and other clients do not send
// together. A page can empty Accept-Language, but not remove it.
func isBrowser(h http.Header) bool {
	return strings.HasPrefix(h.Get("User-Agent"), "Mozilla/") && len(h.Values("Accept-Language")) > 0
}
