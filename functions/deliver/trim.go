package deliver

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

// trim removes old messages from the streams of events, messages and users if a trim is due. If one stream cannot be trimmed,
// trim still trims the others, and the next trim tries again. trim wakes the relay if a stream that refused messages has room
// again.
func (d *deliverer) trim(ctx context.Context, c *fn.Call) error {
	if d.env.Bus() == nil {
		return nil
	}
	plan, due, err := d.env.Messages.BeginTrim(ctx)
	if err != nil || !due {
		return err
	}
	d.env.WakeDeliverAt(time.Time{})              // during this trim, another call posts what is due
	failures := []error{d.checkStreamAlerts(ctx)} // before the trim: afterwards a stream may be too empty for an alert
	var freed []string
	record := func(stream string, removed int, err error) {
		failures = append(failures, err)
		if removed > 0 {
			freed = append(freed, stream)
		}
	}
	refused := func(stream string) bool { return slices.Contains(plan.Refused, stream) }
	removedEvents, err := d.env.Bus().TrimEvents(ctx)
	record(bus.StreamEvents, removedEvents, err)
	trimmed, err := d.env.Bus().TrimMessages(ctx, plan.From, refused(bus.StreamMessages), d.messageStates)
	record(bus.StreamMessages, trimmed.Removed, err)
	var inboxes bus.TrimmedUsers
	removedFromUsers, err := d.env.Bus().TrimUsers(ctx, refused(bus.StreamUsers), func(ctx context.Context, t bus.TrimmedUsers) error {
		inboxes = t
		return d.env.Messages.SetInboxesTrimmed(ctx, t.UpTo, t.Last)
	})
	record(bus.StreamUsers, removedFromUsers, err)
	if len(inboxes.UpTo) > 0 {
		failures = append(failures, d.env.Messages.ForgetInboxTrims(ctx, inboxes.Last, inboxes.MaxAge))
	}
	c.Log("trimmed_events", removedEvents, "trimmed_messages", trimmed.Removed, "trimmed_users", removedFromUsers)
	if trimmed.HeldBy != "" {
		d.env.Log.Warn("the stream is full of messages that a consumer has not read; let the consumer read, or delete the consumer",
			"stream", bus.StreamMessages, "consumer", trimmed.HeldBy)
	}
	failures = append(failures, d.env.Messages.EndTrim(ctx, trimmed.Next, freed))
	if slices.ContainsFunc(freed, refused) {
		d.env.WakeRelayAt(time.Time{})
	}
	return errors.Join(slices.DeleteFunc(failures, func(err error) bool { return errors.Is(err, bus.ErrUnavailable) })...)
}

// trimsPerStreamSize is how many times trimEventsIfNeeded trims while this process records as many bytes of events as the stream
// can hold. It is large, so that a stream just below the threshold of a trim is not full before the next trim.
const trimsPerStreamSize = 16

// trimEventsIfNeeded trims the stream of events each time this process has recorded 1/trimsPerStreamSize of the stream's size.
// trim alone, which is usually due every five minutes, would be too rare: one caller can fill the stream within a minute.
func (d *deliverer) trimEventsIfNeeded(ctx context.Context, events []webhooks.RecordedEvent) {
	var bytes int64
	for i := range events {
		bytes += int64(len(events[i].Payload)) + messages.StreamOverhead
	}
	bytesPerTrim := d.env.Config.Bus.Sizes()[bus.StreamEvents] / trimsPerStreamSize
	if d.env.Bus() == nil || d.recordedBytes.Add(bytes) < bytesPerTrim {
		return
	}
	d.recordedBytes.Store(0)
	if _, err := d.env.Bus().TrimEvents(ctx); err != nil { // the next trim tries again
		d.env.Log.Info("the stream of events was not trimmed", "function", "deliver", "error", err)
	}
}

// checkStreamAlerts raises and clears the alerts of streams, and schedules the next check while an alert is open.
func (d *deliverer) checkStreamAlerts(ctx context.Context) error {
	open, err := d.env.Alerts.CheckStreams(ctx, d.env.Bus().StreamUsage)
	if open {
		d.env.WakeAgainAt(bus.WakeDeliver, time.Now().Add(messages.TrimIntervalInAlert+time.Second))
	}
	return err
}

// messageStates returns the states of the messages with these ids, by id. It leaves out messages that may be sent again. The state is
// Finished if the message is confirmed or abandoned, and Sent if it was sent and needs no confirmation.
func (d *deliverer) messageStates(ctx context.Context, ids []string) (map[string]bus.MessageState, error) {
	parsedIDs := make([]task.ID, 0, len(ids))
	for _, id := range ids {
		if parsed, err := task.ParseID(id); err == nil {
			parsedIDs = append(parsedIDs, parsed)
		}
	}
	final, err := d.env.Messages.Final(ctx, parsedIDs)
	if err != nil {
		return nil, err
	}
	states := make(map[string]bus.MessageState, len(final))
	for id, confirmedOrAbandoned := range final {
		states[id.String()] = bus.Sent
		if confirmedOrAbandoned {
			states[id.String()] = bus.Finished
		}
	}
	return states, nil
}
