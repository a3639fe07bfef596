package subscribe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	// In characters, as in the columns.
	maxType     = 50
	maxWeChatID = 100
	maxPagePath = 1024

	maxReason = 500 // characters
)

var noMetadata = []byte(`{}`) // a request has no metadata; the store adds the subscribe_id

type sendRequest api.SubscribeRequest

// Validate names every field whose value is not acceptable. It leaves out what checkNow checks, because a repeated
// request must be accepted at any later time.
func (r *sendRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Text("template_id", r.TemplateID, maxWeChatID)
	bad.Text("template_type", r.TemplateType, maxType)
	bad.Text("business_type", r.BusinessType, maxType)
	requireNumber(&bad, "business_id", r.BusinessID)
	requireNumber(&bad, "receiver_user_id", r.ReceiverUserID)
	bad.Text("receiver_openid", r.ReceiverOpenID, maxWeChatID)
	if r.MessageData == nil {
		bad.When(true, "message_data", `is required: an object such as {"thing1": {"value": "Tea"}}`)
	} else {
		bad = append(bad, task.CheckSubscribeData(r.MessageData)...)
	}
	bad.AtMost("page_path", r.PagePath, maxPagePath)
	oneOf(&bad, "lang", r.Lang, "zh_CN", "en_US", "zh_HK", "zh_TW")
	oneOf(&bad, "miniprogram_state", r.MiniprogramState, "formal", "trial", "developer")
	bad.OnUnknown("on_unknown", r.OnUnknown)
	bad.Between("max_retries", r.MaxRetries, 0, task.MaxRetriesCap)
	bad.Callback("callback_url", r.CallbackURL)
	bad.Time("send_at", r.SendAt)
	bad.TTL("ttl_seconds", r.TTLSeconds)
	return bad
}

// requireNumber requires that the field is present. A number that is present is valid: api.Number accepts no other.
func requireNumber(bad *decode.BadFields, field string, n api.Number) {
	bad.When(n == "", field, "is required: an integer between 0 and 18446744073709551615")
}

// oneOf restricts an optional field to the accepted values.
func oneOf(bad *decode.BadFields, field, value string, accepted ...string) {
	bad.When(value != "" && !slices.Contains(accepted, value), field, "must be one of "+strings.Join(accepted, ", "))
}

// checkNow makes the checks whose result changes with time: send_at is not too far in the future, and the outgoing
// networks allow the callback_url.
func (r *sendRequest) checkNow(now time.Time, allowed config.Networks) *task.Error {
	var bad decode.BadFields
	bad.When(r.SendAt != nil && r.SendAt.After(now.Add(decode.MaxTaskDelay)), "send_at", "must be at most a year ahead")
	bad.AllowedHost("callback_url", r.CallbackURL, allowed)
	return task.Invalid(bad)
}

// submission converts a valid request. on_unknown is hold by default, so that no user gets a message twice.
func (h *handlers) submission(c *fn.Call, r *sendRequest) *subscribe.Submission {
	s := &subscribe.Submission{
		TaskID: task.NewID(), TemplateID: r.TemplateID, TemplateType: r.TemplateType, BusinessType: r.BusinessType,
		ReceiverOpenID: r.ReceiverOpenID, Data: r.MessageData, Page: r.PagePath, Lang: r.Lang, MiniprogramState: r.MiniprogramState,
		CallerID: c.Caller.ID, MaxRetries: int16(decode.ValueOr(r.MaxRetries, h.maxRetries)), OnUnknown: task.Hold, CallbackURL: r.CallbackURL, Metadata: noMetadata,
		SendAt: decode.ValueOr(r.SendAt, time.Time{}), TTL: decode.SecondsOr(r.TTLSeconds, 0),
		Refused: r.checkNow(time.Now(), h.env.Config.OutgoingNetworks), MayResendOthers: c.May(fn.Admin), HidesOthers: hidesOthers(c),
	}
	s.BusinessID, _ = r.BusinessID.Uint64() // both numbers are valid
	s.ReceiverUserID, _ = r.ReceiverUserID.Uint64()
	if policy, ok := task.ParsePolicy(r.OnUnknown); ok {
		s.OnUnknown = policy
	}
	return s
}

// keywordText returns the values of the keywords (thing1, date2, ...) of valid message data, one per line.
func keywordText(data []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var keywords map[string]struct{ Value any }
	_ = decoder.Decode(&keywords) // the data is valid
	lines := make([]string, 0, len(keywords))
	for _, k := range keywords {
		lines = append(lines, fmt.Sprint(k.Value))
	}
	return strings.Join(lines, "\n")
}
