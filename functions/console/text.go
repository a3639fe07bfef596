package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/api"
)

// htmlLanguages has the languages of the pages, with their names in HTML. The code and the templates have English texts. The map
// chinese has the translations.
var htmlLanguages = map[string]string{"en": "en", "zh": "zh-CN"}

const languageCookie = "sendonce-language"

// languageOf returns the language that the visitor chose, else the first supported language of Accept-Language, else English.
func languageOf(r *http.Request) string {
	if c, err := r.Cookie(languageCookie); err == nil && htmlLanguages[c.Value] != "" {
		return c.Value
	}
	for _, part := range strings.Split(r.Header.Get("Accept-Language"), ",") {
		tag, _, _ := strings.Cut(strings.TrimSpace(part), ";")
		name, _, _ := strings.Cut(strings.ToLower(tag), "-")
		if htmlLanguages[name] != "" {
			return name
		}
	}
	return "en"
}

func translate(language, text string, values ...any) string {
	texts := english
	if language == "zh" {
		texts = chinese
	}
	if translated := texts[text]; translated != "" {
		text = translated
	}
	if len(values) == 0 {
		return text
	}
	return fmt.Sprintf(text, values...)
}

// number groups the digits of a count: 1,234,567.
func number(n any) string {
	digits := fmt.Sprint(n)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// percent returns the share of good in good+bad, or a dash if both are 0.
func percent(good, bad int64) string {
	if good+bad == 0 {
		return "–"
	}
	return strconv.FormatFloat(100*float64(good)/float64(good+bad), 'f', 1, 64) + " %"
}

// alertValue formats the value of an alert: a number of tasks for the kind backlog, a percentage for other kinds.
func alertValue(kind string, value any) string {
	n, _ := value.(float64)
	if pointer, ok := value.(*float64); ok && pointer != nil {
		n = *pointer
	}
	if kind == "backlog" {
		return number(int64(n))
	}
	return strconv.FormatFloat(100*n, 'f', 1, 64) + " %"
}

// duration formats seconds in a suitable unit: 850 ms, 12 s, 5 min, 3 h, 2 d. nil is a dash.
func duration(language string, seconds any) string {
	var s float64
	switch value := seconds.(type) {
	case *float64:
		if value == nil {
			return "–"
		}
		s = *value
	case float64:
		s = value
	case int:
		s = float64(value)
	case time.Duration:
		s = value.Seconds()
	default:
		return "–"
	}
	units := []struct {
		below, size float64
		text        string
	}{{1, 0.001, "%d ms"}, {120, 1, "%d s"}, {2 * 3600, 60, "%d min"}, {48 * 3600, 3600, "%d h"}}
	for _, unit := range units {
		if s < unit.below {
			return translate(language, unit.text, int(s/unit.size))
		}
	}
	return translate(language, "%d d", int(s/86400))
}

// timeText is the data of the template time.
type timeText struct {
	Relative string // such as "2 h ago" or "in 5 min"
	Exact    string // with its zone
	Machine  string // RFC 3339; "" if there is no time
}

func timeOf(language string, at any) timeText {
	var when time.Time
	switch value := at.(type) {
	case time.Time:
		when = value
	case *time.Time:
		if value != nil {
			when = *value
		}
	}
	if when.IsZero() {
		return timeText{Relative: "–"}
	}
	relative := translate(language, "in %s", duration(language, time.Until(when)))
	if since := time.Since(when); since >= 0 {
		relative = translate(language, "%s ago", duration(language, since))
	}
	return timeText{relative, when.UTC().Format("2006-01-02 15:04:05 UTC"), when.UTC().Format(time.RFC3339Nano)}
}

// hidden returns what a page shows in place of a content.
func hidden(language, text string) string {
	if text == "" {
		return "–"
	}
	return translate(language, "hidden, %s characters", strconv.Itoa(utf8.RuneCountInString(text)))
}

// shortEvent returns the type of an event without its prefix and version.
func shortEvent(eventType string) string {
	return strings.TrimSuffix(strings.TrimPrefix(eventType, "sendonce."), ".v1")
}

// pretty indents a text if it is JSON, unless that would make it very long: a caller can nest data so that each byte gets many blanks.
func pretty(text string) string {
	var indented bytes.Buffer
	if indentedLength(text) > 4*len(text)+1024 || json.Indent(&indented, []byte(text), "", "  ") != nil {
		return text
	}
	return indented.String()
}

// indentedLength returns about how many bytes a JSON text has with indentation.
func indentedLength(text string) int {
	length, depth, quoted := len(text), 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[', c == '{':
			depth++
			length += 1 + 2*depth
		case c == ']', c == '}':
			depth = max(depth-1, 0)
			length += 1 + 2*depth
		case c == ',':
			length += 1 + 2*depth
		}
	}
	return length
}

// lastTry returns a list of the newest try, or an empty list if there are no tries.
func lastTry(tries []api.DeliveryTry) []api.DeliveryTry { return tries[max(len(tries)-1, 0):] }

// english has English texts for values of the API that are not plain English. English pages show all other texts unchanged.
var english = map[string]string{
	"bulk cancel": "Cancel tasks", "bulk retry": "Retry tasks", "bulk succeeded": "Mark as sent", "bulk failed": "Give up", "bulk resend": "Send again",
	"retries_exhausted": "no retry left", "stale_claim": "claim out of date", "promoted": "became pending",
	"timeout_retry": "lease expired, retried", "timeout_held": "lease expired, held", "timeout_failed": "lease expired, failed",
	"failure_rate": "many failures", "stream_full": "stream almost full",
	"cloudevents": "CloudEvents, signed", "slack": "Slack robot", "dingtalk": "DingTalk robot", "wecom": "WeCom robot", "feishu": "Feishu or Lark robot",
}

// timeInText parses a time that the API returns as text, or returns nil for any other text.
func timeInText(text string) *time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil
	}
	return &at
}

// isPast reports whether a time has passed.
func isPast(at *time.Time) bool { return at != nil && at.Before(time.Now()) }
