package submit

import (
	"math"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	maxBatch       = 1000
	maxMetadata    = 4 << 10 // bytes
	maxNumberChars = 40      // characters of a number in the metadata
)

type (
	sendRequest  api.SendRequest
	batchRequest api.SendBatchRequest
)

// Validate checks only the number of items. Each item is validated separately, so that a bad item does not fail the batch.
func (r *batchRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(len(r.Items) == 0 || len(r.Items) > maxBatch, "items", "must have 1 to 1000 items")
	return bad
}

// Validate does not compare times with the current time, because a repeat of a call with the same idempotency_key must be accepted
// even after its times have passed. checkNow compares them.
func (r *sendRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Phone(r.PhoneNumber)
	bad.AtMost("source", r.Source, task.MaxSource)
	bad.When(r.IdempotencyKey != "" && !task.ValidKey(r.IdempotencyKey), "idempotency_key", task.KeyRule)
	bad.SMSQueue("queue", r.Queue, "POST /api/v1/subscribe/send")
	bad.Between("priority", r.Priority, 0, task.LowestPriority)
	bad.Between("max_retries", r.MaxRetries, 0, task.MaxRetriesCap)
	bad.OnUnknown("on_unknown", r.OnUnknown)
	r.validateText(&bad)
	r.validateTimes(&bad)
	bad.Callback("callback_url", r.CallbackURL)
	r.validateMetadata(&bad)
	return bad
}

func (r *sendRequest) validateText(bad *decode.BadFields) {
	templated := r.TemplateID != 0 || r.TemplateName != "" || r.Params != nil
	bad.When(r.TemplateID > math.MaxInt32, "template_id", "must be the id of a template")
	bad.AtMost("template_name", r.TemplateName, task.MaxTemplateName)
	bad.When(r.TemplateID != 0 && r.TemplateName != "", "template_name", "must not be given together with template_id")
	bad.When(templated && r.UseTemplate != nil && !*r.UseTemplate, "use_template", "must not be false when a template or params are given")
	bad.When(r.Params != nil && r.Content != "", "params", "must not be given together with content")
	if r.Params != nil {
		_, fields := task.ParamsFromJSON(r.Params)
		*bad = append(*bad, fields...)
	}
	switch {
	case r.draft().UseTemplate:
		bad.AtMost("content", r.Content, task.MaxEncoded)
	case r.Content != "" && strings.TrimSpace(r.Content) == "":
		bad.When(true, "content", "must not be blank; leave it out to send the default content of the phone number")
	default:
		bad.AtMost("content", r.Content, task.MaxContent)
	}
}

func (r *sendRequest) validateTimes(bad *decode.BadFields) {
	bad.TTL("ttl_seconds", r.TTLSeconds)
	bad.When(r.TTLSeconds != nil && r.ExpiresAt != nil, "expires_at", "must not be given together with ttl_seconds")
	bad.When(r.SendAt != nil && r.ExpiresAt != nil && !r.ExpiresAt.After(*r.SendAt), "expires_at", "must be after send_at")
	bad.Time("send_at", r.SendAt)
	bad.Time("expires_at", r.ExpiresAt)
}

// checkNow returns an error if expires_at has passed, send_at or expires_at is too far ahead, or the host of
// callback_url is not allowed by the present settings. A replay is accepted despite such an error.
func (r *sendRequest) checkNow(now time.Time, allowed config.Networks) *task.Error {
	var bad decode.BadFields
	bad.When(r.SendAt != nil && r.SendAt.After(now.Add(decode.MaxTaskDelay)), "send_at", "must be at most a year ahead")
	bad.When(r.ExpiresAt != nil && r.ExpiresAt.After(now.Add(2*decode.MaxTaskDelay)), "expires_at", "must be at most two years ahead")
	bad.When(r.ExpiresAt != nil && !r.ExpiresAt.After(now), "expires_at", "has passed")
	bad.AllowedHost("callback_url", r.CallbackURL, allowed)
	return task.Invalid(bad)
}

func (r *sendRequest) validateMetadata(bad *decode.BadFields) {
	if r.Metadata == nil {
		return
	}
	if r.Metadata[0] != '{' || len(r.Metadata) > maxMetadata {
		bad.When(true, "metadata", "must be a JSON object of at most 4096 bytes")
		return
	}
	bad.Numbers("metadata", r.Metadata, maxNumberChars)
}

// draft returns the text of the request, or its template and params. With use_template, content may have the params in URL-encoded
// form. A template or params imply use_template.
func (r *sendRequest) draft() task.Draft {
	d := task.Draft{Content: r.Content, TemplateID: int32(r.TemplateID), TemplateName: r.TemplateName}
	d.UseTemplate = r.UseTemplate != nil && *r.UseTemplate || r.Params != nil || r.TemplateID != 0 || r.TemplateName != ""
	if r.Params != nil {
		d.Params, _ = task.ParamsFromJSON(r.Params)
	}
	return d
}
