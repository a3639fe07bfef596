package fn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// attemptHeader says how often the trigger has tried an event, this time
// included. It is about the delivery and no attribute of the event.
const attemptHeader = "Ce-Deliveryattempt"

// panicsAllowed is how many deliveries of one event may panic before it is taken
// for poison: the first ones may meet a passing state.
const panicsAllowed = 5

// poison is an error that no retry will cure.
type poison struct{ error }

func (p poison) Unwrap() error { return p.error }

// Poison marks an event as one that its function can never take: it is kept in
// dead_letters with err as the reason and counts as taken, so that its
// successors go on.
func Poison(err error) error { return poison{err} }

// taker stands around one event function.
type taker struct {
	env    *Env
	name   string
	handle EventHandler
}

func takeEvent(env *Env, name string, handle EventHandler) Route {
	t := taker{env, name, handle}
	r := newRoute(Trigger, t.take).MaxBody(eventMaxBody).Timeout(eventTimeout)
	r.event = true
	return r
}

func (t taker) take(ctx context.Context, c *Call) (any, error) {
	attempt, _ := strconv.Atoi(c.r.Header.Get(attemptHeader)) // absent or no number: the first
	c.r.Header.Del(attemptHeader)
	e, err := readEvent(c)
	if err != nil {
		return nil, err
	}
	c.Log("event_id", e.ID(), "event_type", e.Type())
	err = t.run(ctx, c, *e, attempt)
	var p poison
	if errors.As(err, &p) {
		c.Log("dead_letter", p.Error())
		err = t.env.db.Bury(ctx, store.DeadLetter{
			Function: t.name, EventID: e.ID(), EventType: e.Type(), Event: string(e.Data()), Reason: p.Error(), Attempts: max(attempt, 1),
		})
	}
	if err != nil {
		return nil, err
	}
	c.Status(http.StatusNoContent)
	return nil, nil
}

// run makes poison of an event that panics again and again.
func (t taker) run(ctx context.Context, c *Call, e cloudevents.Event, attempt int) (err error) {
	if attempt >= panicsAllowed {
		defer func() {
			if r := recover(); r != nil {
				err = Poison(fmt.Errorf("panic: %v", r))
			}
		}()
	}
	return t.handle(ctx, c, e)
}

// readEvent decodes with the binding alone: the framework's receiver can hang
// after a cancelled request.
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
	var invalid event.ValidationError
	if !errors.As(err, &invalid) {
		return []task.Field{{Name: "event", Message: err.Error()}}
	}
	var fields []task.Field
	for name, problem := range invalid {
		fields = append(fields, task.Field{Name: name, Message: problem.Error()})
	}
	slices.SortFunc(fields, func(a, b task.Field) int { return strings.Compare(a.Name, b.Name) })
	return fields
}

// MessageEvent is a reliable message as its receiver gets it: a CloudEvent whose
// id is the message's.
func MessageEvent(m store.MessageDetail) (cloudevents.Event, error) {
	e := cloudevents.NewEvent()
	e.SetID(m.ID.String())
	e.SetSource("/sendonce/messages/" + m.From)
	e.SetType(m.Type)
	e.SetTime(m.CreatedAt.UTC())
	return e, e.SetData(cloudevents.ApplicationJSON, m.Data)
}
