package trigger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
)

const (
	deadLetterTimeout = 2 * time.Second // short: the function is the fallback
	refusedDataMax    = 64 << 10        // bytes of a refused event's data that are sent to its function
)

// errFunctionRefused means that neither DEADLETTERS nor the function accepts the dead letter.
var errFunctionRefused = errors.New("the function does not record it either")

// recordDeadLetter stores the event and the reason in DEADLETTERS. If that fails, for example because DEADLETTERS is
// full, recordDeadLetter posts a RefusedType event to the function, so that later events need not wait.
func (t *Trigger) recordDeadLetter(ctx context.Context, js jetstream.JetStream, r *route, it *item, v verdict) error {
	err := publishDeadLetter(ctx, js, r, it, v)
	if err == nil || ctx.Err() != nil {
		return err
	}
	t.logger(r, it.meta).Warn("DEADLETTERS did not store an event: asking the function to record it", "error", err)
	refused, encodeErr := refusedEvent(r, it, v)
	if encodeErr != nil {
		return encodeErr
	}
	outcome := t.post(ctx, r, refused)
	switch outcome.kind {
	case verdictDone:
		return nil
	case verdictRefused:
		return fmt.Errorf("%w: %s; DEADLETTERS: %w", errFunctionRefused, outcome.reason, err)
	}
	return fmt.Errorf("DEADLETTERS: %w; the function: %s", err, outcome.reason)
}

func publishDeadLetter(ctx context.Context, js jetstream.JetStream, r *route, it *item, v verdict) error {
	h := nats.Header{}
	for name, value := range it.event.headers {
		h.Set(name, value)
	}
	h.Set("dlq-function", r.Function)
	h.Set("dlq-subject", it.msg.Subject())
	h.Set("dlq-stream", r.Stream)
	h.Set("dlq-sequence", strconv.FormatUint(it.meta.Sequence.Stream, 10))
	h.Set("dlq-status", strconv.Itoa(v.status))
	h.Set("dlq-reason", v.reason)
	h.Set("dlq-attempts", strconv.FormatUint(it.meta.NumDelivered, 10))
	ctx, cancel := context.WithTimeout(ctx, deadLetterTimeout)
	defer cancel()
	_, err := js.PublishMsg(ctx, &nats.Msg{Subject: bus.DeadLetterPrefix + r.Stream + "." + r.Durable, Header: h, Data: it.event.data},
		// With the id of the event: after NATS has lost the end of a stream, another event gets the same sequence number.
		jetstream.WithMsgID("dlq-"+messageID(it.meta, &r.Route)+"-"+it.event.headers["ce-id"]), jetstream.WithExpectStream(bus.StreamDeadLetters))
	return err
}

func refusedEvent(r *route, it *item, v verdict) (postedEvent, error) {
	refused := Refused{
		ID: it.event.headers["ce-id"], Type: it.event.headers["ce-type"], Reason: v.reason, Attempts: int(it.meta.NumDelivered),
		Event: strings.ToValidUTF8(string(it.event.data[:min(len(it.event.data), refusedDataMax)]), "?"),
	}
	if refused.ID == "" {
		refused.ID = messageID(it.meta, &r.Route)
	}
	data, err := json.Marshal(refused)
	return postedEvent{headers: map[string]string{
		"ce-specversion": cloudevents.VersionV1,
		"ce-id":          "dlq-" + messageID(it.meta, &r.Route),
		"ce-type":        RefusedType,
		"ce-source":      "/sendonce/trigger",
		contentType:      cloudevents.ApplicationJSON,
	}, data: data}, err
}
