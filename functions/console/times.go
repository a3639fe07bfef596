package console

import (
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
)

// badField returns the error of a form or filter with an invalid field. Pages return this error instead of calling the API.
func (p *page) badField(name, message string) error {
	return &api.Error{Status: http.StatusBadRequest, Message: p.T("The form has an invalid field."), Fields: []api.Field{{Field: name, Message: message}}}
}

// typedTime reads a time from a field of a form: an instant with its zone, or a span such as 2h from now. An empty field is nil.
func (p *page) typedTime(name string) (*time.Time, error) {
	text := strings.TrimSpace(p.PostFormValue(name))
	if text == "" {
		return nil, nil
	}
	at, ok := parseTime(text, time.Now(), ahead)
	if !ok {
		return nil, p.badField(name, p.T("must be a time with its zone, such as 2026-01-31T08:00+08:00, or how far ahead it is, such as 30m, 2h or 3d"))
	}
	return &at, nil
}

// typedPast reads a required time from a field of a form: an instant with its zone, or a span such as 2h before now.
func (p *page) typedPast(name string) (time.Time, error) {
	at, ok := parseTime(strings.TrimSpace(p.PostFormValue(name)), time.Now(), ago)
	if !ok {
		return at, p.badField(name, p.T("must be a time with its zone, such as 2026-01-31T08:00+08:00, or how long ago it was, such as 30m, 2h or 3d"))
	}
	return at, nil
}

// timeLayouts has the accepted forms of an instant.
var timeLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02 15:04Z07:00", "2006-01-02 15:04 Z07:00"}

// Directions of a span such as 2h.
const ahead, ago = 1, -1

// parseTime reads an instant with its zone, or a span such as 30m, 2h or 3d, counted from now in a direction.
func parseTime(text string, now time.Time, direction time.Duration) (time.Time, bool) {
	for _, layout := range timeLayouts {
		if at, err := time.Parse(layout, strings.ToUpper(text)); err == nil {
			return at, decode.ValidOffset(at)
		}
	}
	span, err := time.ParseDuration(text)
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		if span, err = time.ParseDuration(days + "h"); span <= 0 || span > math.MaxInt64/24 {
			return time.Time{}, false
		}
		span *= 24
	}
	return now.Add(direction * span), err == nil && span > 0
}

// pastTimes writes the valid times of a query as RFC 3339 in UTC: 2h becomes the instant 2 hours ago. It does not change invalid
// values, which the API refuses.
func pastTimes(query url.Values, names ...string) {
	for _, name := range names {
		if at, ok := parseTime(query.Get(name), time.Now(), ago); ok {
			query.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
}

func instant(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.Format(time.RFC3339Nano)
}
