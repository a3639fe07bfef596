package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	tokenBytes = 32 // 256 random bits
	maxQueues  = 100

	maxBusinessTypes = 100
	maxBusinessType  = 50 // characters
	maxReceives      = 100

	maxWaiting      = 1_000_000_000 // messages, and tasks
	maxWaitingBytes = 1 << 40
)

// callerRequest is api.CallerRequest with its rules.
type callerRequest api.CallerRequest

// Validate names every field whose value is not acceptable.
func (r *callerRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.When(!task.ValidUser(r.Name), "name", "is required: it "+task.UserRule)
	checkRoles(&bad, r.Roles)
	checkQueues(&bad, r.Queues)
	checkBusinessTypes(&bad, r.BusinessTypes)
	checkReceives(&bad, r.Receives)
	checkLimits(&bad, r.MaxWaitingMessages, r.MaxWaitingBytes, r.MaxWaitingTasks, r.BestPriority)
	return bad
}

// callerChange is api.CallerChange with its rules.
type callerChange api.CallerChange

// Validate names every field whose value is not acceptable.
func (r *callerChange) Validate() []task.Field {
	var bad decode.Rules
	bad.When(r.Roles == nil && r.Queues == nil && r.BusinessTypes == nil && r.Receives == nil &&
		r.MaxWaitingMessages == nil && r.MaxWaitingBytes == nil && r.MaxWaitingTasks == nil && r.BestPriority == nil,
		"body", "must give roles, queues, business_types, receives, max_waiting_messages, max_waiting_bytes, max_waiting_tasks or best_priority")
	if r.Roles != nil {
		checkRoles(&bad, r.Roles)
	}
	checkQueues(&bad, r.Queues)
	checkBusinessTypes(&bad, r.BusinessTypes)
	checkReceives(&bad, r.Receives)
	checkLimits(&bad, r.MaxWaitingMessages, r.MaxWaitingBytes, r.MaxWaitingTasks, r.BestPriority)
	return bad
}

func checkRoles(bad *decode.Rules, roles []string) {
	bad.When(len(roles) == 0, "roles", "must name at least one of submitter, sender, receiver, trigger, admin")
	for i, role := range roles {
		at := fmt.Sprintf("roles[%d]", i)
		switch fn.Role(role) {
		case fn.Submitter, fn.Sender, fn.Receiver, fn.Trigger, fn.Admin:
			bad.When(slices.Contains(roles[:i], role), at, "is named twice")
		default:
			bad.When(true, at, "must be submitter, sender, receiver, trigger or admin")
		}
	}
}

func checkQueues(bad *decode.Rules, queues []string) {
	if len(queues) > maxQueues {
		bad.When(true, "queues", fmt.Sprintf("must be at most %d queues; leave it empty for all", maxQueues))
		return
	}
	for i, queue := range queues {
		at := fmt.Sprintf("queues[%d]", i)
		bad.When(queue == "", at, "must not be empty")
		bad.Queue(at, queue)
		bad.When(slices.Contains(queues[:i], queue), at, "is named twice")
	}
}

func checkBusinessTypes(bad *decode.Rules, types []string) {
	bad.When(len(types) > maxBusinessTypes, "business_types", fmt.Sprintf("must be at most %d types; leave it empty for all", maxBusinessTypes))
	for i, name := range types[:min(len(types), maxBusinessTypes)] {
		at := fmt.Sprintf("business_types[%d]", i)
		bad.Text(at, name, maxBusinessType)
		bad.When(slices.Contains(types[:i], name), at, "is named twice")
	}
}

func checkReceives(bad *decode.Rules, patterns []string) {
	bad.When(len(patterns) > maxReceives, "receives", fmt.Sprintf("must be at most %d subjects or patterns", maxReceives))
	for i, pattern := range patterns[:min(len(patterns), maxReceives)] {
		at := fmt.Sprintf("receives[%d]", i)
		bad.When(!message.ValidPattern(pattern), at, "must be a subject such as msg.orders.paid or a pattern of subjects such as msg.orders.> or msg.*.paid, at most 255 bytes")
		bad.When(slices.Contains(patterns[:i], pattern), at, "is named twice")
	}
}

func checkLimits(bad *decode.Rules, messages, bytes, tasks, bestPriority *int64) {
	outside := func(n *int64, most int64) bool { return n != nil && (*n < 0 || *n > most) }
	bad.When(outside(messages, maxWaiting), "max_waiting_messages", "must be between 0 and 1000000000, where 0 means SENDONCE_CALLER_WAITING_MESSAGES")
	bad.When(outside(bytes, maxWaitingBytes), "max_waiting_bytes", "must be between 0 and 1099511627776, where 0 means SENDONCE_CALLER_WAITING_MB")
	bad.When(outside(tasks, maxWaiting), "max_waiting_tasks", "must be between 0 and 1000000000, where 0 means SENDONCE_CALLER_WAITING_TASKS")
	bad.When(outside(bestPriority, task.DefaultPriority), "best_priority", "must be between 0 and 5: the smallest priority that the caller may give to a task, where 0 goes before all others")
}

func (h *handlers) addCaller(ctx context.Context, c *fn.Call, req callerRequest) (any, error) {
	if req.Name == h.username && limits(c).MayName(req.Name) {
		return nil, task.Refuse(task.CodeConflict, "this name is that of the built-in admin")
	}
	token, hash := newToken()
	row, err := h.callerStore.Add(ctx, req.Name, hash, callers.Grants{
		Roles: req.Roles, Queues: req.Queues, BusinessTypes: req.BusinessTypes, Receives: req.Receives,
		MaxWaitingMessages: req.MaxWaitingMessages, MaxWaitingBytes: req.MaxWaitingBytes, MaxWaitingTasks: req.MaxWaitingTasks,
		BestPriority: req.BestPriority,
	}, c.Operator(""))
	h.callerChanged(ctx, row.Name)
	return withToken(row, token), err
}

// newToken makes a token and the hash that is stored of it.
func newToken() (token string, hash []byte) {
	secret := make([]byte, tokenBytes)
	rand.Read(secret) // never fails: without randomness the process ends
	token = base64.RawURLEncoding.EncodeToString(secret)
	sum := sha256.Sum256([]byte(token))
	return token, sum[:]
}

func (h *handlers) callers(ctx context.Context, c *fn.Call, req listRequest) (any, error) {
	rows, more, err := h.callerStore.List(ctx, limits(c), int64(req.After), decode.PageLimit(req.Limit))
	page := fn.PageOf(rows, more, callerResponse, func(row callers.StoredCaller) int64 { return row.ID })
	shown := page.Items[:0]
	for i, row := range rows {
		if limits(c).Manages(row) {
			shown = append(shown, page.Items[i])
		}
	}
	page.Items = shown
	return page, err
}

// limits returns those of the calling admin, or nil for one without queues.
func limits(c *fn.Call) *callers.StoredCaller {
	if !c.HasQueues() {
		return nil
	}
	return &callers.StoredCaller{Name: c.Caller.Name, Grants: c.Caller.Grants()}
}

func (h *handlers) caller(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	id, err := fn.RowID[int64](c, "caller")
	if err != nil {
		return nil, err
	}
	row, err := h.callerStore.ByID(ctx, id)
	if err == nil && !limits(c).Manages(row) {
		err = task.Refuse(task.CodeNotFound, "no such caller")
	}
	return callerResponse(row), err
}

func (h *handlers) updateCaller(ctx context.Context, c *fn.Call, req callerChange) (any, error) {
	id, err := fn.RowID[int64](c, "caller")
	if err != nil {
		return nil, err
	}
	row, also, err := h.callerStore.Update(ctx, id, callers.Grants{
		Roles: req.Roles, Queues: req.Queues, BusinessTypes: req.BusinessTypes, Receives: req.Receives,
		MaxWaitingMessages: req.MaxWaitingMessages, MaxWaitingBytes: req.MaxWaitingBytes, MaxWaitingTasks: req.MaxWaitingTasks,
		BestPriority: req.BestPriority,
	}, c.Operator(""))
	return h.changedWith(ctx, row, also), err
}

func (h *handlers) rotateCaller(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	id, err := fn.RowID[int64](c, "caller")
	if err != nil {
		return nil, err
	}
	token, hash := newToken()
	row, err := h.callerStore.RotateToken(ctx, id, hash, c.Operator(""))
	h.callerChanged(ctx, row.Name)
	return withToken(row, token), err
}

func (h *handlers) revokeCaller(ctx context.Context, c *fn.Call, _ struct{}) (any, error) {
	id, err := fn.RowID[int64](c, "caller")
	if err != nil {
		return nil, err
	}
	row, also, err := h.callerStore.Revoke(ctx, id, c.Operator(""))
	return h.changedWith(ctx, row, also), err
}

// changedWith publishes the change of a caller and of the callers that it made, and
// returns the answer.
func (h *handlers) changedWith(ctx context.Context, row callers.StoredCaller, also []callers.StoredCaller) api.CallerResponse {
	answer := callerResponse(row)
	for _, made := range also {
		answer.AlsoChanged = append(answer.AlsoChanged, made.Name)
	}
	h.callerChanged(ctx, append(answer.AlsoChanged, row.Name)...)
	return answer
}

func callerResponse(row callers.StoredCaller) api.CallerResponse {
	return api.CallerResponse{
		ID: api.ID(row.ID), Name: row.Name, Roles: notNil(row.Roles), Queues: notNil(row.Queues), BusinessTypes: notNil(row.BusinessTypes), Receives: notNil(row.Receives),
		MaxWaitingMessages: row.MaxWaitingMessages, MaxWaitingBytes: row.MaxWaitingBytes, MaxWaitingTasks: row.MaxWaitingTasks,
		BestPriority: *cmp.Or(row.BestPriority, new(int64)), // nil where there is no row because of an error
		CreatedAt:    row.CreatedAt.UTC(), RotatedAt: fn.UTC(row.RotatedAt), RevokedAt: fn.UTC(row.RevokedAt),
		MadeBy: (*api.ID)(row.MadeBy),
	}
}

// withToken is the only answer that shows a token.
func withToken(row callers.StoredCaller, token string) api.CallerResponse {
	answer := callerResponse(row)
	answer.Token = token
	return answer
}
