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
// the others are trimmed, and the next trim tries again. trim wakes the relay if a stream that refused messages has room again.
func (d *deliverer) trim(ctx context.Context, c *fn.Call) error {
	if d.env.Bus() == nil {
		return nil
	}
	plan, due, err := d.messageStore.BeginTrim(ctx)
	if err != nil || !due {
		return err
	}
	failures := []error{d.checkStreamAlerts(ctx)} // before the trim, after which a stream may be too empty for an alert
	var freed []string
	record := func(stream string, removed int, err error) {
		failures = append(failures, err)
		if removed > 0 {
			freed = append(freed, stream)
		}
	}
	refused := func(stream string) bool { return slices.Contains(plan.Refused, stream) }
	events, err := d.env.Bus().TrimEvents(ctx, refused(bus.StreamEvents))
	record(bus.StreamEvents, events, err)
	trimmed, err := d.env.Bus().TrimMessages(ctx, plan.From, refused(bus.StreamMessages), d.messageStates)
	record(bus.StreamMessages, trimmed.Removed, err)
	users, err := d.env.Bus().TrimUsers(ctx, refused(bus.StreamUsers), func(ctx context.Context, t bus.TrimmedUsers) error {
		return d.messageStore.SetInboxesTrimmed(ctx, t.To, t.Last, t.Kept)
	})
	record(bus.StreamUsers, users, err)
	c.Log("trimmed_events", events, "trimmed_messages", trimmed.Removed, "trimmed_users", users)
	if trimmed.HeldBy != "" && refused(bus.StreamMessages) {
		d.env.Log.Warn("the stream is full of messages that a consumer has not read; let it read, or delete it",
			"stream", bus.StreamMessages, "consumer", trimmed.HeldBy)
	}
	if err := d.messageStore.EndTrim(ctx, trimmed.Next, freed); err != nil {
		return err
	}
	if len(plan.Refused) > 0 && len(freed) > 0 {
		d.env.WakeRelayAt(time.Time{})
	}
	return errors.Join(slices.DeleteFunc(failures, func(err error) bool { return errors.Is(err, bus.ErrUnavailable) })...)
}

// trimChecksPerStream is how often trimEventsIfNeeded trims while a stream's size of events is recorded. It is large, so that a
// stream just below the threshold of a trim is not full before the next trim.
const trimChecksPerStream = 16

// trimEventsIfNeeded trims the stream of events each time this process has recorded 1/trimChecksPerStream of the stream's size.
// The regular trim alone is too rare: one caller can fill the stream within a minute.
func (d *deliverer) trimEventsIfNeeded(ctx context.Context, events []webhooks.RecordedEvent) {
	var bytes int64
	for i := range events {
		bytes += int64(len(events[i].Payload)) + messages.StreamOverhead
	}
	bytesPerCheck := d.env.Config.Bus.Sizes()[bus.StreamEvents] / trimChecksPerStream
	if d.env.Bus() == nil || d.recordedBytes.Add(bytes) < bytesPerCheck {
		return
	}
	d.recordedBytes.Store(0)
	if _, err := d.env.Bus().TrimEvents(ctx, false); err != nil { // the next trim tries again
		d.env.Log.Info("the stream of events was not trimmed", "function", "deliver", "error", err)
	}
}

// checkStreamAlerts raises and clears the alerts of streams, and schedules the next check while an alert is open.
func (d *deliverer) checkStreamAlerts(ctx context.Context) error {
	open, err := d.alertStore.CheckStreams(ctx, d.env.Bus().StreamUsage)
	if open {
		d.env.WakeAgainAt(bus.WakeDeliver, time.Now().Add(messages.TrimEveryAlert+time.Second))
	}
	return err
}

// messageStates returns the states of the final messages among ids.
func (d *deliverer) messageStates(ctx context.Context, ids []string) (map[string]bus.MessageState, error) {
	parsedIDs := make([]task.ID, 0, len(ids))
	for _, id := range ids {
		if parsed, err := task.ParseID(id); err == nil {
			parsedIDs = append(parsedIDs, parsed)
		}
	}
	finished, err := d.messageStore.Finished(ctx, parsedIDs)
	if err != nil {
		return nil, err
	}
	states := make(map[string]bus.MessageState, len(finished))
	for id, confirmed := range finished {
		states[id.String()] = bus.Sent
		if confirmed {
			states[id.String()] = bus.Finished
		}
	}
	return states, nil
}
