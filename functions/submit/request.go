package submit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	keyRule        = "must be 1 to 255 characters of A-Z a-z 0-9 . _ : -"
	maxEncoded     = 4000 // characters of URL-encoded parameters
	maxMetadata    = 4 << 10
	maxCallback    = 2000
	farthest       = 366 * 24 * time.Hour // how far ahead a task may be sent or expire
	maxNumberChars = 40
)

// sendRequest is api.SendRequest with its rules.
type sendRequest api.SendRequest

// batchRequest is api.SendBatchRequest with its rules.
type batchRequest api.SendBatchRequest

// Validate holds the batch to its size; the items are judged one by one.
func (r *batchRequest) Validate() []task.Field {
	if len(r.Items) == 0 || len(r.Items) > maxBatch {
		return []task.Field{{Name: "items", Message: "must hold 1 to 1000 items"}}
	}
	return nil
}

// Validate names every field whose value is not acceptable. What depends on
// the moment (times that passed) is pastTime's: it must not keep a replay
// from its answer.
func (r *sendRequest) Validate() []task.Field {
	var bad rules
	bad.when(!task.ValidPhone(r.PhoneNumber), "phone_number", "is required: 3 to 19 digits, optionally after a +")
	bad.tooLong("source", r.Source, 50)
	bad.when(r.IdempotencyKey != "" && !task.ValidKey(r.IdempotencyKey), "idempotency_key", keyRule)
	bad.when(r.Queue != "" && !validQueue(r.Queue), "queue", "must be 1 to 63 characters of a-z A-Z 0-9 . _ -")
	bad.when(r.Priority != nil && (*r.Priority < 0 || *r.Priority > task.LowestPriority), "priority", "must be between 0 (highest) and 9")
	bad.when(r.MaxRetries != nil && (*r.MaxRetries < 0 || *r.MaxRetries > task.MaxRetriesCap), "max_retries", "must be between 0 and 10")
	if _, ok := task.ParsePolicy(r.OnUnknown); r.OnUnknown != "" && !ok {
		bad.add("on_unknown", "must be resend, hold or fail")
	}
	r.validateText(&bad)
	r.validateTimes(&bad)
	r.validateCallback(&bad)
	r.validateMetadata(&bad)
	return bad
}

func (r *sendRequest) validateText(bad *rules) {
	named := r.TemplateID != 0 || r.TemplateName != ""
	templated := named || r.Params != nil
	bad.when(r.TemplateID < 0, "template_id", "must be positive")
	bad.tooLong("template_name", r.TemplateName, 100)
	bad.when(r.TemplateID != 0 && r.TemplateName != "", "template_name", "must not be given together with template_id")
	bad.when(templated && r.UseTemplate != nil && !*r.UseTemplate, "use_template", "must not be false when a template or params are given")
	bad.when(r.Params != nil && r.Content != "", "params", "must not be given together with content")
	if _, fields := task.ParamsFromJSON(r.Params); r.Params != nil {
		*bad = append(*bad, fields...)
	}
	switch {
	case r.draft().UseTemplate:
		bad.tooLong("content", r.Content, maxEncoded)
	case r.Content != "" && strings.TrimSpace(r.Content) == "":
		bad.add("content", "must not be blank; leave it out to send the number's default content")
	default:
		bad.tooLong("content", r.Content, task.MaxContent)
	}
}

func (r *sendRequest) validateTimes(bad *rules) {
	bad.when(r.TTLSeconds != nil && (*r.TTLSeconds < 1 || *r.TTLSeconds > int64(farthest/time.Second)), "ttl_seconds", "must be between 1 and 31622400")
	bad.when(r.TTLSeconds != nil && r.ExpiresAt != nil, "expires_at", "must not be given together with ttl_seconds")
	bad.when(r.SendAt != nil && r.ExpiresAt != nil && !r.ExpiresAt.After(*r.SendAt), "expires_at", "must be after send_at")
	bad.when(r.SendAt != nil && !storableTime(*r.SendAt), "send_at", "must lie between the years 1 and 9999")
	bad.when(r.ExpiresAt != nil && !storableTime(*r.ExpiresAt), "expires_at", "must lie between the years 1 and 9999")
}

func storableTime(t time.Time) bool { return t.UTC().Year() >= 1 && t.UTC().Year() <= 9999 }

// pastTime refuses what this moment makes senseless; nil when nothing does.
func (r *sendRequest) pastTime(now time.Time) *task.Error {
	var bad rules
	bad.when(r.SendAt != nil && r.SendAt.After(now.Add(farthest)), "send_at", "must be at most a year ahead")
	bad.when(r.ExpiresAt != nil && r.ExpiresAt.After(now.Add(2*farthest)), "expires_at", "must be at most two years ahead")
	bad.when(r.ExpiresAt != nil && !r.ExpiresAt.After(now), "expires_at", "has passed")
	return task.Invalid(bad)
}

func (r *sendRequest) validateCallback(bad *rules) {
	if r.CallbackURL == "" {
		return
	}
	u, err := url.Parse(r.CallbackURL)
	bad.when(err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" || u.User != nil || len(r.CallbackURL) > maxCallback,
		"callback_url", "must be an http or https URL without user name, at most 2000 bytes")
}

func (r *sendRequest) validateMetadata(bad *rules) {
	if r.Metadata == nil {
		return
	}
	var object map[string]any
	decoder := json.NewDecoder(bytes.NewReader(r.Metadata))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil || object == nil || len(r.Metadata) > maxMetadata {
		bad.add("metadata", "must be a JSON object of at most 4096 bytes")
		return
	}
	if problem := unstorable(object); problem != "" {
		bad.add("metadata", problem)
	}
}

// unstorable tells what the database could not keep of a JSON value.
func unstorable(value any) string {
	switch v := value.(type) {
	case string:
		if strings.ContainsRune(v, 0) {
			return "must not contain NUL or unpaired surrogates"
		}
	case json.Number:
		if f, err := strconv.ParseFloat(v.String(), 64); err != nil || len(v) > maxNumberChars || f != 0 && (f < 1e-300 && f > -1e-300) {
			return "holds a number that is out of range"
		}
	case []any:
		for _, element := range v {
			if problem := unstorable(element); problem != "" {
				return problem
			}
		}
	case map[string]any:
		for name, element := range v {
			if problem := unstorable(name); problem != "" {
				return problem
			}
			if problem := unstorable(element); problem != "" {
				return problem
			}
		}
	}
	return ""
}

// draft is the text that the request asks for. A named template or params
// imply use_template.
func (r *sendRequest) draft() task.Draft {
	d := task.Draft{Content: r.Content, TemplateID: r.TemplateID, TemplateName: r.TemplateName}
	d.UseTemplate = r.UseTemplate != nil && *r.UseTemplate || r.Params != nil || r.TemplateID != 0 || r.TemplateName != ""
	if r.Params != nil {
		d.Params, _ = task.ParamsFromJSON(r.Params)
	}
	return d
}

// fill gives the submission what a valid request says.
func (s *submitter) fill(sub *store.Submission, r *sendRequest) {
	sub.Queue, sub.Priority, sub.MaxRetries = task.DefaultQueue, task.DefaultPrio, s.maxRetries
	if r.Queue != "" {
		sub.Queue = r.Queue
	}
	if r.Priority != nil {
		sub.Priority = int16(*r.Priority)
	}
	if r.MaxRetries != nil {
		sub.MaxRetries = int16(*r.MaxRetries)
	}
	sub.OnUnknown, _ = task.ParsePolicy(r.OnUnknown)
	sub.Source, sub.CallbackURL, sub.Metadata = r.Source, r.CallbackURL, r.Metadata
	if r.SendAt != nil {
		sub.SendAt = *r.SendAt
	}
	if r.ExpiresAt != nil {
		sub.ExpiresAt = *r.ExpiresAt
	}
	if r.TTLSeconds != nil {
		sub.TTL = time.Duration(*r.TTLSeconds) * time.Second
	}
}

func validQueue(queue string) bool {
	for _, c := range queue {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return len(queue) >= 1 && len(queue) <= task.MaxQueueBytes
}

// rules collects the bad fields of a request.
type rules []task.Field

func (b *rules) add(field, message string) {
	*b = append(*b, task.Field{Name: field, Message: message})
}

func (b *rules) when(is bool, field, message string) {
	if is {
		b.add(field, message)
	}
}

func (b *rules) tooLong(field, text string, limit int) {
	b.when(utf8.RuneCountInString(text) > limit, field, fmt.Sprintf("must be at most %d characters", limit))
}
