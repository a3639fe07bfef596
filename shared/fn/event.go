package fn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/trigger"
)

// EventHandler handles one CloudEvent. The handler returns nil to acknowledge the event, a result of
// Poison to keep the event as a dead letter, or a *task.Error with a status such as 400 or 422 to refuse the event
// permanently (see package trigger). After any other error the event is delivered again. The handler must
// be idempotent: an event may be delivered several times.
type EventHandler func(ctx context.Context, c *Call, e cloudevents.Event) error

// BatchHandler handles a batch of events, in the order of the batch if the order matters. The handler
// returns nil to acknowledge all events. After an error the trigger delivers the batch again, or the
// events of the batch one by one.
type BatchHandler func(ctx context.Context, c *Call, events []streamevent.Event) error

// Event makes a function that handles the CloudEvents of POST /events/{name}. Callers need the role
// Trigger. C and build are as for HTTP.
func Event[C any](name string, build func(*Env, C) EventHandler) Function {
	return HTTP(name, func(env *Env, cfg C) Routes {
		return Routes{"POST /events/" + name: eventRoute{env: env, name: name, handle: build(env, cfg)}.route()}
	})
}

// EventBatch is Event for a function that also receives batches of events.
func EventBatch[C any](name string, build func(*Env, C) (EventHandler, BatchHandler)) Function {
	return HTTP(name, func(env *Env, cfg C) Routes {
		handle, batch := build(env, cfg)
		return Routes{"POST /events/" + name: eventRoute{env: env, name: name, handle: handle, batch: batch}.route()}
	})
}

// poison is an error that a retry cannot fix.
type poison struct{ error }

func (p poison) Unwrap() error { return p.error }

// Poison marks an event as one that its function can never handle. The event is acknowledged and
// recorded in dead_letters with err as the reason, so that later events are delivered.
func Poison(err error) error { return poison{err} }

// PoisonIn returns the error that was given to Poison, if err is or wraps a result of Poison; else nil.
func PoisonIn(err error) error {
	if p, ok := errors.AsType[poison](err); ok {
		return p.error
	}
	return nil
}

// attemptHeader is the header with the number of the trigger's attempts to deliver the event, this one
// included. It is removed before the event is decoded: otherwise it would become an attribute of the event.
const attemptHeader = "Ce-Deliveryattempt"

// eventRoute serves one event function: it decodes events and records dead letters.
type eventRoute struct {
	env    *Env
	name   string
	handle EventHandler
	batch  BatchHandler // nil = batches are refused
}

func (r eventRoute) route() Route {
	route := newRoute(Trigger, r.serve).MaxBody(eventMaxBody).Timeout(eventTimeout)
	if r.batch != nil {
		route = route.MaxBody(MaxEventBatch)
		route.batch = true
	}
	route.event = true
	return route
}

func (r eventRoute) serve(ctx context.Context, c *Call) (any, error) {
	attempt, _ := strconv.Atoi(c.r.Header.Get(attemptHeader)) // 0 if the header is absent or not a number
	c.r.Header.Del(attemptHeader)
	c.Status(http.StatusNoContent)
	if kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err == nil && r.batch != nil && kind == trigger.BatchType {
		// Of each event only the attributes in streamevent.Event are decoded: decoding all attributes would take longer
		// than the rest of the call.
		var events []streamevent.Event
		err := json.Unmarshal(c.Body, &events)
		c.LetOthersRun()
		if err != nil {
			return nil, task.Invalid([]task.Field{{Name: "body", Message: "is not a batch of CloudEvents: " + err.Error()}})
		}
		c.Log("events", len(events))
		return nil, r.batch(ctx, c, events)
	}
	e, err := readEvent(c)
	c.LetOthersRun()
	if err != nil {
		return nil, err
	}
	c.Log("event_id", task.MaskNumbers(e.ID()), "event_type", task.MaskNumbers(e.Type()))
	if e.Type() == trigger.RefusedType {
		return nil, r.saveRefused(ctx, c, e)
	}
	deadLetter := store.DeadLetter{Function: r.name, EventID: e.ID(), EventType: e.Type(), Event: string(e.Data()), Attempts: max(attempt, 1)}
	defer r.countPanic(ctx, c, deadLetter)
	err = r.handle(ctx, c, *e)
	if reason := PoisonIn(err); reason != nil {
		deadLetter.Reason = reason.Error()
		c.Log("dead_letter", task.MaskNumbers(deadLetter.Reason))
		err = r.env.Admin.AddDeadLetters(ctx, deadLetter)
	}
	return nil, err
}

// saveRefused records a dead letter that the stream DEADLETTERS did not store (see trigger.RefusedType).
func (r eventRoute) saveRefused(ctx context.Context, c *Call, e *cloudevents.Event) error {
	var refused trigger.Refused
	if err := json.Unmarshal(e.Data(), &refused); err != nil {
		return task.Invalid([]task.Field{{Name: "data", Message: "must be a refused event: " + err.Error()}})
	}
	c.Log("dead_letter", task.MaskNumbers(refused.Reason))
	return r.env.Admin.AddDeadLetters(ctx, store.DeadLetter{
		Function: r.name, EventID: refused.ID, EventType: refused.Type, Event: refused.Event, Reason: refused.Reason, Attempts: refused.Attempts,
	})
}

// countPanic counts a panic of the handler for the event and panics again: the response is 500, and
// the event is delivered again. After too many panics the event becomes a dead letter instead, and is
// acknowledged.
func (r eventRoute) countPanic(ctx context.Context, c *Call, deadLetter store.DeadLetter) {
	panicked := recover()
	if panicked == nil {
		return
	}
	deadLetter.Reason = fmt.Sprint("panic: ", panicked)
	isDead, err := r.env.Admin.CountPanic(context.WithoutCancel(ctx), deadLetter)
	if err != nil || !isDead {
		panic(panicked)
	}
	c.Log("dead_letter", task.MaskNumbers(deadLetter.Reason), "stack", string(debug.Stack()))
}

// readEvent decodes one event with the HTTP binding of the SDK. The package comment says why the framework's receiver
// is not used.
func readEvent(c *Call) (*cloudevents.Event, error) {
	c.r.Body = io.NopCloser(bytes.NewReader(c.Body))
	e, err := cehttp.NewEventFromHTTPRequest(c.r)
	if err != nil {
		return nil, task.Invalid([]task.Field{{Name: "event", Message: "is not a CloudEvent in binary or structured mode: " + err.Error()}})
	}
	if err := e.Validate(); err != nil {
		return nil, task.Invalid(eventFields(err))
	}
	return e, nil
}

func eventFields(err error) []task.Field {
	invalid, ok := errors.AsType[event.ValidationError](err)
	if !ok {
		return []task.Field{{Name: "event", Message: err.Error()}}
	}
	var fields []task.Field
	for name, problem := range invalid {
		fields = append(fields, task.Field{Name: name, Message: problem.Error()})
	}
	slices.SortFunc(fields, func(a, b task.Field) int { return strings.Compare(a.Name, b.Name) })
	return fields
}
