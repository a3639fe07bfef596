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

	maxValues       = 100 // in each of queues, business_types and receives
	maxBusinessType = 50  // characters

	maxWaiting      = 1_000_000_000 // the largest max_waiting_messages and max_waiting_tasks
	maxWaitingBytes = 1 << 40       // the largest max_waiting_bytes
)

type callerRequest api.CallerRequest

func (r *callerRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(!task.ValidUser(r.Name), "name", "is required: it "+task.UserRule)
	checkRoles(&bad, r.Roles)
	checkGrants(&bad, r.grants())
	return bad
}

func (r *callerRequest) grants() callers.Grants {
	return callers.Grants{
		Roles: r.Roles, Queues: r.Queues, BusinessTypes: r.BusinessTypes, Receives: r.Receives,
		MaxWaitingMessages: r.MaxWaitingMessages, MaxWaitingBytes: r.MaxWaitingBytes, MaxWaitingTasks: r.MaxWaitingTasks,
		BestPriority: r.BestPriority,
	}
}

type callerChange api.CallerChange

func (r *callerChange) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(r.Roles == nil && r.Queues == nil && r.BusinessTypes == nil && r.Receives == nil &&
		r.MaxWaitingMessages == nil && r.MaxWaitingBytes == nil && r.MaxWaitingTasks == nil && r.BestPriority == nil,
		"body", "must give roles, queues, business_types, receives, max_waiting_messages, max_waiting_bytes, max_waiting_tasks or best_priority")
	if r.Roles != nil {
		checkRoles(&bad, r.Roles)
	}
	checkGrants(&bad, callers.Grants(*r))
	return bad
}

func checkRoles(bad *decode.BadFields, roles []string) {
	bad.When(len(roles) == 0, "roles", "must name at least one of submitter, sender, receiver, viewer, trigger, admin")
	for i, role := range roles {
		at := fmt.Sprintf("roles[%d]", i)
		switch fn.Role(role) {
		case fn.Submitter, fn.Sender, fn.Receiver, fn.Viewer, fn.Trigger, fn.Admin:
			bad.When(slices.Contains(roles[:i], role), at, "repeats an earlier value")
		default:
			bad.When(true, at, "must be submitter, sender, receiver, viewer, trigger or admin")
		}
	}
}

func checkGrants(bad *decode.BadFields, g callers.Grants) {
	checkList(bad, "queues", "queues; leave it empty for all", g.Queues, func(at, queue string) {
		bad.When(queue == "", at, "must not be empty")
		bad.Queue(at, queue)
	})
	checkList(bad, "business_types", "types; leave it empty for all", g.BusinessTypes, func(at, name string) { bad.Text(at, name, maxBusinessType) })
	checkList(bad, "receives", "subjects or patterns", g.Receives, func(at, pattern string) {
		bad.When(!message.ValidPattern(pattern), at, "must be a subject such as msg.orders.paid or a pattern of subjects such as msg.orders.> or msg.*.paid, at most 255 bytes")
	})
	outside := func(n *int64, most int64) bool { return n != nil && (*n < 0 || *n > most) }
	bad.When(outside(g.MaxWaitingMessages, maxWaiting), "max_waiting_messages", "must be between 0 and 1000000000, where 0 means SENDONCE_CALLER_WAITING_MESSAGES")
	bad.When(outside(g.MaxWaitingBytes, maxWaitingBytes), "max_waiting_bytes", "must be between 0 and 1099511627776, where 0 means SENDONCE_CALLER_WAITING_MB")
	bad.When(outside(g.MaxWaitingTasks, maxWaiting), "max_waiting_tasks", "must be between 0 and 1000000000, where 0 means SENDONCE_CALLER_WAITING_TASKS")
	bad.When(outside(g.BestPriority, task.DefaultPriority), "best_priority", "must be between 0 and 5: the smallest number that the caller may give as priority; 0 goes first")
}

// checkList checks the length of a list, each value, and that no value is repeated. noun names the values, for the error.
func checkList(bad *decode.BadFields, field, noun string, values []string, check func(at, value string)) {
	bad.When(len(values) > maxValues, field, fmt.Sprintf("must be at most %d %s", maxValues, noun))
	for i, value := range values[:min(len(values), maxValues)] {
		at := fmt.Sprintf("%s[%d]", field, i)
		check(at, value)
		bad.When(slices.Contains(values[:i], value), at, "repeats an earlier value")
	}
}

func (h *handlers) addCaller(ctx context.Context, c *fn.Call, req callerRequest) (any, error) {
	if req.Name == h.env.Config.Username && limitedOperator(c).MayName(req.Name) {
		return nil, task.Refuse(task.CodeConflict, "this is the name of the built-in admin")
	}
	token, hash := newToken()
	row, err := h.env.Callers.Add(ctx, req.Name, hash, req.grants(), c.AsOperator(""))
	h.env.CallersChanged(ctx, row.Name)
	return withToken(row, token), err
}

// newToken returns a new token, and its hash, which is stored instead of the token.
func newToken() (token string, hash []byte) {
	secret := make([]byte, tokenBytes)
	rand.Read(secret) // never fails
	token = base64.RawURLEncoding.EncodeToString(secret)
	sum := sha256.Sum256([]byte(token))
	return token, sum[:]
}

func (h *handlers) callers(ctx context.Context, c *fn.Call, req listRequest) (any, error) {
	rows, more, err := h.env.Callers.List(ctx, limitedOperator(c), int64(req.After), decode.PageLimit(req.Limit))
	page := fn.PageOf(rows, more, callerResponse, func(row callers.StoredCaller) int64 { return row.ID })
	shown := page.Items[:0]
	for i, row := range rows { // List checks the names, but not the grants
		if limitedOperator(c).Manages(row) {
			shown = append(shown, page.Items[i])
		}
	}
	page.Items = shown
	return page, err
}

// limitedOperator returns the calling admin or viewer if it has queues, else nil. Its name and grants limit the callers that it manages
// (see the method Manages); nil manages all callers.
func limitedOperator(c *fn.Call) *callers.StoredCaller {
	if !c.LimitedToQueues() {
		return nil
	}
	return &callers.StoredCaller{Name: c.Caller.Name, Grants: c.Caller.Grants()}
}

func (h *handlers) caller(ctx context.Context, c *fn.Call, id int64, _ struct{}) (any, error) {
	row, err := h.env.Callers.ByID(ctx, id)
	if err == nil && !limitedOperator(c).Manages(row) {
		err = task.Refuse(task.CodeNotFound, "no such caller")
	}
	return callerResponse(row), err
}

func (h *handlers) updateCaller(ctx context.Context, c *fn.Call, id int64, req callerChange) (any, error) {
	row, dependents, err := h.env.Callers.Update(ctx, id, callers.Grants(req), c.AsOperator(""))
	return h.publishChanges(ctx, row, dependents), err
}

func (h *handlers) rotateCaller(ctx context.Context, c *fn.Call, id int64, _ struct{}) (any, error) {
	token, hash := newToken()
	row, err := h.env.Callers.RotateToken(ctx, id, hash, c.AsOperator(""))
	h.env.CallersChanged(ctx, row.Name)
	return withToken(row, token), err
}

func (h *handlers) revokeCaller(ctx context.Context, c *fn.Call, id int64, _ struct{}) (any, error) {
	row, dependents, err := h.env.Callers.Revoke(ctx, id, c.AsOperator(""))
	return h.publishChanges(ctx, row, dependents), err
}

// publishChanges makes all processes read again a changed caller and its changed dependents (the callers that it made, directly or
// through others). It returns the response.
func (h *handlers) publishChanges(ctx context.Context, row callers.StoredCaller, dependents []callers.StoredCaller) api.CallerResponse {
	response := callerResponse(row)
	for _, dependent := range dependents {
		response.AlsoChanged = append(response.AlsoChanged, dependent.Name)
	}
	h.env.CallersChanged(ctx, append(response.AlsoChanged, row.Name)...)
	return response
}

func callerResponse(row callers.StoredCaller) api.CallerResponse {
	return api.CallerResponse{
		ID: api.ID(row.ID), Name: row.Name, Roles: nonNilCopy(row.Roles), Queues: nonNilCopy(row.Queues), BusinessTypes: nonNilCopy(row.BusinessTypes), Receives: nonNilCopy(row.Receives),
		MaxWaitingMessages: row.MaxWaitingMessages, MaxWaitingBytes: row.MaxWaitingBytes, MaxWaitingTasks: row.MaxWaitingTasks,
		BestPriority: *cmp.Or(row.BestPriority, new(int64)), // nil only if row is zero because of an error
		CreatedAt:    row.CreatedAt.UTC(), RotatedAt: fn.UTC(row.RotatedAt), RevokedAt: fn.UTC(row.RevokedAt),
		MadeBy: (*api.ID)(row.MadeBy),
	}
}

// withToken returns the response with a new token.
func withToken(row callers.StoredCaller, token string) api.CallerResponse {
	response := callerResponse(row)
	response.Token = token
	return response
}
