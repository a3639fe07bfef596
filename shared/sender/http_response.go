package sender

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/retry"
	"github.com/sendonce/sendonce/shared/text"
)

const (
	unreachable       = "unreachable"
	defaultRetryAfter = 30 * time.Second // without a Retry-After in the future, or without a response
)

// responseRules decide the outcome of a response.
type responseRules struct {
	outcomes map[string]Outcome // HTTPConfig.Outcomes and the defaults
	path     []string           // of the field that must be equal to value; empty = the status alone decides
	value    string             // HTTPConfig.OKValue
}

func parseRules(cfg HTTPConfig) (responseRules, error) {
	rules := responseRules{value: cfg.OKValue, outcomes: map[string]Outcome{
		unreachable: Released,
		"2xx":       OK, "3xx": Unknown, "4xx": Failed, "5xx": Unknown,
		"401": Released, "407": Released, "408": Retryable, "429": Released,
	}}
	var bad []error
	status := regexp.MustCompile(`^([2-5]xx|[2-5][0-9][0-9])$`)
	for _, key := range slices.Sorted(maps.Keys(cfg.Outcomes)) {
		if key != unreachable && !status.MatchString(key) {
			bad = append(bad, fmt.Errorf("%q must be a status from 200 to 599, a class from 2xx to 5xx, or %s", key, unreachable))
		}
		if key == unreachable && cfg.Outcomes[key] == OK {
			bad = append(bad, errors.New("the outcome of unreachable must not be ok: nothing was sent"))
		}
		rules.outcomes[key] = cfg.Outcomes[key]
	}
	if cfg.OKField != "" {
		rules.path = strings.Split(cfg.OKField, ".")
	} else if cfg.OKValue != "" {
		bad = append(bad, errors.New("OKValue needs OKField"))
	}
	return rules, errors.Join(bad...)
}

// outcome returns the outcome of the status: its entry, else Released for a 503 whose Retry-After is in the future, else
// its class's entry.
func (r responseRules) outcome(res *http.Response, retryAfter time.Duration) Outcome {
	status := strconv.Itoa(res.StatusCode)
	outcome, known := r.outcomes[status]
	if !known && res.StatusCode == http.StatusServiceUnavailable && retryAfter > 0 {
		return Released
	}
	if !known {
		outcome = r.outcomes[status[:1]+"xx"]
	}
	return outcome
}

// result returns the result of a response; readErr is the error of reading its body.
func (r responseRules) result(res *http.Response, body []byte, readErr error) Result {
	retryAfter := retry.After(res.Header, time.Now(), maxRetryAfter)
	outcome := r.outcome(res, retryAfter)
	if outcome == OK && len(r.path) > 0 {
		return r.fieldResult(body, readErr)
	}
	if outcome == OK {
		return Result{Outcome: OK}
	}
	message := res.Status
	if detail := excerpt(body); detail != "" {
		message += ": " + detail
	}
	return withRetryAfter(Result{Outcome: outcome, Code: strconv.Itoa(res.StatusCode), Message: message}, retryAfter)
}

// fieldResult returns the result of a response whose status has the outcome OK: the field OKField decides.
func (r responseRules) fieldResult(body []byte, readErr error) Result {
	value, found := lookUp(body, r.path)
	switch {
	case found && value == r.value:
		return Result{Outcome: OK}
	case found:
		return Result{Outcome: Failed, Code: value, Message: excerpt(body)}
	case readErr != nil:
		return Result{Message: "the response is incomplete: " + readErr.Error()}
	default:
		return Result{Message: "the response has no text, number, boolean or null at " + strings.Join(r.path, ".") + ": " + excerpt(body)}
	}
}

// lookUp returns the value at a path in JSON, as text. Objects and arrays count as not found.
func lookUp(body []byte, path []string) (value string, found bool) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var node any
	if decoder.Decode(&node) != nil {
		return "", false
	}
	for _, name := range path {
		switch inner := node.(type) {
		case map[string]any:
			if node, found = inner[name]; !found {
				return "", false
			}
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(inner) {
				return "", false
			}
			node = inner[i]
		default:
			return "", false
		}
	}
	switch leaf := node.(type) {
	case string:
		return leaf, true
	case json.Number:
		return leaf.String(), true
	case bool:
		return strconv.FormatBool(leaf), true
	case nil:
		return "null", true
	}
	return "", false
}

// withRetryAfter sets RetryAfter if the outcome is Released.
func withRetryAfter(r Result, after time.Duration) Result {
	if r.Outcome == Released {
		r.RetryAfter = cmp.Or(after, defaultRetryAfter)
	}
	return r
}

// excerpt returns the beginning of a response as printable text.
func excerpt(body []byte) string {
	return strings.TrimSpace(text.Cut(text.Printable(string(body[:min(len(body), 4*maxMessage)]), ' '), maxMessage))
}
