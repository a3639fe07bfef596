// Package submit is the function that third parties call to submit, read and cancel tasks. Each task sends one text message:
//
//	POST /api/v1/sms/send
//	POST /api/v1/sms/send/batch
//	GET  /api/v1/sms/task/{task_id}
//	GET  /api/v1/sms/by-key/{key}
//	POST /api/v1/sms/task/{task_id}/cancel
//
// A 2xx for a send, or for an item of a batch, means that the task is committed. The same idempotency key with the same body returns
// the same task at any later time.
package submit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// Config has the function's settings.
type Config struct {
	MaxRetries int `envconfig:"MAX_RETRY_COUNT" default:"3" desc:"retries of a task that does not set max_retries, 0 to 10; 3 = at most four claims"`
}

// Validate names every setting whose value is not acceptable.
func (c *Config) Validate() []task.Field {
	var bad decode.BadFields
	bad.Between("MAX_RETRY_COUNT", &c.MaxRetries, 0, task.MaxRetriesCap)
	return bad
}

// Function serves the routes that submit, read and cancel tasks.
var Function = fn.HTTP("submit", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) fn.Routes {
	s := &submitter{env, cfg.MaxRetries}
	return fn.Routes{
		"POST /api/v1/sms/send":                  fn.Raw(fn.Submitter, s.send),
		"POST /api/v1/sms/send/batch":            fn.Raw(fn.Submitter, s.sendBatch).MaxBody(maxBatchBody).Timeout(batchTimeout),
		"GET /api/v1/sms/task/{task_id}":         fn.Parameters(fn.Submitter, s.task),
		"GET /api/v1/sms/by-key/{key}":           fn.Parameters(fn.Submitter, s.byKey),
		"POST /api/v1/sms/task/{task_id}/cancel": fn.Parameters(fn.Submitter, s.cancel),
	}
}

const (
	batchTimeout = 30 * time.Second
	// maxBatchBody is 13 KiB for each of maxBatch items, enough for the longest fields that are accepted.
	maxBatchBody = maxBatch * 13 << 10
)

type submitter struct {
	env        *fn.Env
	maxRetries int
}

func (s *submitter) send(ctx context.Context, c *fn.Call) (any, error) {
	sub := s.parse(c, c.Body, c.RequestHeader().Values("Idempotency-Key"))
	outs, errs := s.env.Tasks.SubmitWithinQuota(ctx, c.Caller, []*tasks.Submission{sub})
	c.Log("phone", task.MaskPhone(sub.Phone))
	if errs[0] != nil {
		return nil, errs[0]
	}
	out := outs[0]
	if out.Refused != nil {
		return nil, out.Refused
	}
	s.wake(sub, out)
	c.Header().Set("Location", "/api/v1/sms/task/"+out.ID.String())
	if out.Replayed {
		c.Header().Set("Idempotency-Replayed", "true")
	}
	return response(out), nil
}

// sendBatch returns for each item the result that a request with this item alone would get.
func (s *submitter) sendBatch(ctx context.Context, c *fn.Call) (any, error) {
	var req batchRequest
	err := decode.Object(c.Body, &req)
	if len(c.RequestHeader().Values("Idempotency-Key")) > 0 {
		err = addField(err, task.Field{Name: "Idempotency-Key", Message: "must not be sent with a batch; give each item its own idempotency_key"})
	}
	if err != nil {
		return nil, s.recordRefused(c, err)
	}
	results := c.EachChunk(ctx, req.Items, func(items []json.RawMessage, results []api.BatchItem) { s.sendItems(ctx, c, items, results) })
	c.Log("items", len(req.Items))
	return api.BatchResponse{Items: results}, nil
}

func (s *submitter) sendItems(ctx context.Context, c *fn.Call, items []json.RawMessage, results []api.BatchItem) {
	subs := make([]*tasks.Submission, len(items))
	for i, item := range items {
		subs[i] = s.parseItem(c, item)
	}
	c.LetOthersRun()
	outs, errs := s.env.Tasks.SubmitWithinQuota(ctx, c.Caller, subs)
	for i, out := range outs {
		switch {
		case errs[i] != nil:
			results[i] = c.Item(nil, errs[i])
		case out.Refused != nil:
			results[i] = c.Item(nil, out.Refused)
		default:
			s.wake(subs[i], out)
			results[i] = c.Item(response(out), nil)
			results[i].Replayed = out.Replayed
		}
	}
}

// parseItem is parse for an item of a batch. It refuses an item that would be too large for a request of its own.
func (s *submitter) parseItem(c *fn.Call, item json.RawMessage) *tasks.Submission {
	if refused := fn.CheckItem(item); refused != nil {
		sub := newSubmission(c, item)
		sub.Refused = refused
		return sub
	}
	return s.parse(c, item, nil)
}

// recordRefused writes a batch that is refused as a whole to the request log, and returns the refusal.
func (s *submitter) recordRefused(c *fn.Call, refusal *task.Error) error {
	sub := newSubmission(c, c.Body)
	sub.Refused = refusal
	_, errs := s.env.Tasks.Submit([]*tasks.Submission{sub})
	if errs[0] != nil {
		return errs[0]
	}
	return refusal
}

// wake wakes a waiting claim if the task is pending. It schedules sweep for the time at which a pending task expires, or a
// scheduled task is due. A replay does the same again, because the process of the first call may have died before its wake-ups.
func (s *submitter) wake(sub *tasks.Submission, out tasks.Submitted) {
	switch out.State {
	case task.Pending:
		s.env.WakeClaims(sub.Queue, 1)
		s.env.WakeSweepAt(sub.Expiry(time.Now()))
	case task.Scheduled:
		s.env.WakeSweepAt(sub.SendAt)
	}
}

func response(out tasks.Submitted) api.SendResponse {
	segments, encoding := task.Segments(out.Text)
	return api.SendResponse{
		TaskID: out.ID.String(), Status: out.State.Status(), State: out.State.String(), FinalContent: out.Text,
		Segments: segments, Encoding: string(encoding), UnusedParams: out.Unused, Archived: out.Archived,
	}
}

// parse converts a request to a submission. A bad request becomes a refused submission, so that the request log has the request, too.
func (s *submitter) parse(c *fn.Call, raw []byte, keyHeader []string) *tasks.Submission {
	sub := newSubmission(c, raw)
	var req sendRequest
	err := decode.Object(raw, &req)
	key, bad := idempotencyKey(req.IdempotencyKey, keyHeader)
	if bad != nil {
		err = addField(err, *bad)
	}
	sub.Phone, _ = s.env.Config.PhoneCountry.Phone(req.PhoneNumber)
	sub.Draft = req.draft()
	if err != nil && !onlyPhoneIsBad(err, &req) {
		sub.Refused = err
		return sub
	}
	s.fill(sub, &req)
	if key != "" {
		sub.Refused = setKey(sub, &req, key)
	}
	if sub.Refused == nil {
		sub.Refused = cmp.Or(err, checkQueue(c, sub.Queue), checkPriority(c, sub.Priority), req.checkNow(time.Now(), s.env.Config.OutgoingNetworks))
	}
	return sub
}

// fill copies most fields of a request, which must be valid, and sets defaults for missing fields.
func (s *submitter) fill(sub *tasks.Submission, r *sendRequest) {
	sub.Queue = cmp.Or(r.Queue, task.DefaultQueue)
	sub.Priority = int16(decode.ValueOr(r.Priority, task.DefaultPriority))
	sub.MaxRetries = int16(decode.ValueOr(r.MaxRetries, s.maxRetries))
	sub.OnUnknown, _ = task.ParsePolicy(r.OnUnknown)
	sub.Source, sub.CallbackURL, sub.Metadata = r.Source, r.CallbackURL, r.Metadata
	sub.SendAt = decode.ValueOr(r.SendAt, time.Time{})
	sub.ExpiresAt = decode.ValueOr(r.ExpiresAt, time.Time{})
	sub.TTL = decode.SecondsOr(r.TTLSeconds, 0)
}

func checkQueue(c *fn.Call, queue string) *task.Error {
	if c.MayUseQueue(queue) {
		return nil
	}
	return &task.Error{Code: task.CodeForbidden, Message: "this caller may not submit to queue " + queue}
}

// checkPriority refuses a priority that is better than the caller may use. A smaller number is a better priority.
func checkPriority(c *fn.Call, priority int16) *task.Error {
	if int64(priority) >= c.Caller.BestPriority {
		return nil
	}
	return &task.Error{Code: task.CodeForbidden, Message: "this caller may not use this priority", Fields: []task.Field{
		{Name: "priority", Message: fmt.Sprintf("must be between %d and %d", c.Caller.BestPriority, task.LowestPriority)},
	}}
}

// onlyPhoneIsBad reports whether the request has a phone number, and the phone number is the only bad field. Such a request may be
// a replay: the first request may have been accepted before the rule for phone numbers became stricter.
func onlyPhoneIsBad(err *task.Error, r *sendRequest) bool {
	return r.PhoneNumber != "" && len(err.Fields) == 1 && err.Fields[0].Name == "phone_number"
}

// newSubmission returns a submission without the fields of its request.
func newSubmission(c *fn.Call, raw []byte) *tasks.Submission {
	return &tasks.Submission{
		ID: task.NewID(), CallerID: c.Caller.ID,
		RequestID: c.RequestID, SourceIP: c.SourceIP, UserAgent: c.UserAgent, Request: raw,
	}
}

// setKey sets the idempotency key of a submission and the fingerprint of its request. The fingerprint covers the decoded request
// without the key, before templates and defaults are applied. The phone number is covered as it was written, so that a change of
// PHONE_DEFAULT_COUNTRY_CODE does not turn replays into conflicts.
func setKey(sub *tasks.Submission, req *sendRequest, key string) *task.Error {
	body := struct {
		sendRequest
		TemplateID int64 `json:"template_id,omitempty"` // a JSON number, as in the stored fingerprints
	}{*req, int64(req.TemplateID)}
	body.IdempotencyKey = ""
	fingerprint, err := task.Fingerprint(&body)
	if err != nil {
		return task.Refuse(task.CodeInvalid, err.Error())
	}
	hash := task.KeyHash(sub.CallerID, "sms", key)
	sub.Key, sub.Fingerprint = &hash, fingerprint
	return nil
}

// idempotencyKey returns the key of the body or the header. If both have a key, the keys must be equal.
func idempotencyKey(inBody string, header []string) (string, *task.Field) {
	switch {
	case len(header) == 0:
		return inBody, nil
	case len(header) > 1 || !task.ValidKey(header[0]):
		return "", &task.Field{Name: "Idempotency-Key", Message: task.KeyRule}
	case inBody != "" && inBody != header[0]:
		return "", &task.Field{Name: "idempotency_key", Message: "differs from the header Idempotency-Key; send one of them"}
	default:
		return header[0], nil
	}
}

func addField(err *task.Error, f task.Field) *task.Error {
	if err == nil {
		return task.Invalid([]task.Field{f})
	}
	err.Fields = append(err.Fields, f)
	return err
}

func (s *submitter) task(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	t, err := s.ownTask(ctx, c)
	return fn.TaskResponse(t), err
}

func (s *submitter) byKey(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	key := c.PathValue("key")
	if !task.ValidKey(key) {
		return nil, task.Invalid([]task.Field{{Name: "key", Message: task.KeyRule}})
	}
	t, err := s.env.Tasks.ByKey(ctx, task.KeyHash(c.Caller.ID, "sms", key))
	return fn.TaskResponse(t), err
}

func (s *submitter) cancel(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	t, err := s.ownTask(ctx, c)
	if err != nil {
		return nil, err
	}
	var by *store.Operator // nil: the submitter cancels its own task
	if t.CallerID != c.Caller.ID {
		operator := c.AsOperator("")
		by = &operator
	}
	t.Task, err = s.env.Tasks.Cancel(ctx, t.ID, by)
	return fn.TaskResponse(t), err
}

// ownTask returns the task of the path. The error is not_found for another caller's task, unless the caller is an admin
// who is not limited to queues.
func (s *submitter) ownTask(ctx context.Context, c *fn.Call) (tasks.Detail, error) {
	id, err := c.TaskID()
	if err != nil {
		return tasks.Detail{}, err
	}
	t, err := s.env.Tasks.ByID(ctx, id)
	if err == nil && t.CallerID != c.Caller.ID && !c.May(fn.Admin) {
		return tasks.Detail{}, task.Refuse(task.CodeNotFound, "no such task")
	}
	return t, err
}
