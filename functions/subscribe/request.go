package subscribe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	maxType      = 50 // characters, as the columns of seed 000
	maxWeChatID  = 100
	maxPage      = 1024
	maxErrorCode = 50
	maxReason    = 500
	minLease     = 10 // seconds
	maxLease     = 3600
)

// noMetadata is what the tasks of messages have of their own.
var noMetadata = []byte(`{}`)

// sendRequest is api.SubscribeRequest with its rules.
type sendRequest api.SubscribeRequest

// Validate names every field whose value is not acceptable. What depends on the
// moment is tooFar's: it must not keep a repeat from its answer.
func (r *sendRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.Text("template_id", r.TemplateID, maxWeChatID)
	bad.Text("template_type", r.TemplateType, maxType)
	bad.Text("business_type", r.BusinessType, maxType)
	number(&bad, "business_id", r.BusinessID)
	number(&bad, "receiver_user_id", r.ReceiverUserID)
	bad.Text("receiver_openid", r.ReceiverOpenID, maxWeChatID)
	if r.MessageData == nil {
		bad.When(true, "message_data", `is required: an object such as {"thing1": {"value": "Tea"}}`)
	} else {
		bad = append(bad, task.CheckSubscribeData(r.MessageData)...)
	}
	bad.AtMost("page_path", r.PagePath, maxPage)
	oneOf(&bad, "lang", r.Lang, "zh_CN", "en_US", "zh_HK", "zh_TW")
	oneOf(&bad, "miniprogram_state", r.MiniprogramState, "formal", "trial", "developer")
	bad.OnUnknown("on_unknown", r.OnUnknown)
	bad.Between("max_retries", r.MaxRetries, 0, task.MaxRetriesCap)
	bad.Callback("callback_url", r.CallbackURL)
	bad.Time("send_at", r.SendAt)
	bad.TTL("ttl_seconds", r.TTLSeconds)
	return bad
}

// number asks for a number; what is none did not decode.
func number(bad *decode.Rules, field string, n api.Number) {
	bad.When(n == "", field, "is required: an integer between 0 and 18446744073709551615")
}

// oneOf holds an optional word to those that WeChat takes.
func oneOf(bad *decode.Rules, field, word string, known ...string) {
	bad.When(word != "" && !slices.Contains(known, word), field, fmt.Sprintf("must be one of %s", strings.Join(known, ", ")))
}

// tooFar refuses a send time that this moment makes senseless; nil when it does not.
func (r *sendRequest) tooFar(now time.Time) *task.Error {
	var bad decode.Rules
	bad.When(r.SendAt != nil && r.SendAt.After(now.Add(decode.Farthest)), "send_at", "must be at most a year ahead")
	return task.Invalid(bad)
}

// subscription makes the store's order of a valid request. One that nobody knows
// the outcome of is held unless the request says otherwise: the user must not get
// it twice.
func (r *sendRequest) subscription(c *fn.Call, maxRetries int16) *store.Subscription {
	s := &store.Subscription{
		TaskID: task.NewID(), TemplateID: r.TemplateID, TemplateType: r.TemplateType, BusinessType: r.BusinessType,
		ReceiverOpenID: r.ReceiverOpenID, Data: r.MessageData, Page: r.PagePath, Lang: r.Lang, MiniprogramState: r.MiniprogramState,
		CallerID: c.Caller.ID, MaxRetries: maxRetries, OnUnknown: task.Hold, CallbackURL: r.CallbackURL, Metadata: noMetadata,
		Refused: r.tooFar(time.Now()), Anybodys: c.May(fn.Admin), OwnOnly: len(c.Caller.BusinessTypes) > 0,
	}
	s.BusinessID, _ = r.BusinessID.Uint64() // they decoded
	s.ReceiverUserID, _ = r.ReceiverUserID.Uint64()
	if policy, known := task.ParsePolicy(r.OnUnknown); known {
		s.OnUnknown = policy
	}
	if r.MaxRetries != nil {
		s.MaxRetries = int16(*r.MaxRetries)
	}
	if r.SendAt != nil {
		s.SendAt = *r.SendAt
	}
	if r.TTLSeconds != nil {
		s.TTL = time.Duration(*r.TTLSeconds) * time.Second
	}
	return s
}

// texts gives what a person would read of checked message data, one to a line.
func texts(data []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var keywords map[string]struct{ Value any }
	if decoder.Decode(&keywords) != nil {
		return "" // it is checked, so there is none
	}
	lines := make([]string, 0, len(keywords))
	for _, k := range keywords {
		lines = append(lines, fmt.Sprint(k.Value))
	}
	return strings.Join(lines, "\n")
}
