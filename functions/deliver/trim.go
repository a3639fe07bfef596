package deliver

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// trim removes from the streams what nobody waits for any more. A stream that
// cannot be trimmed now keeps no other from it: there is a next time. One that has
// refused messages and has room again is tried again at once.
func (d *deliverer) trim(ctx context.Context, c *fn.Call) error {
	if d.env.Bus() == nil {
		return nil
	}
	now, due, err := d.db.BeginTrim(ctx)
	if err != nil || !due {
		return err
	}
	failures := []error{d.watchStreams(ctx)} // before anything is removed, else nobody learns how full it was
	refused := func(stream string) bool { return slices.Contains(now.Refused, stream) }
	var freed []string
	events, err := d.env.Bus().TrimEvents(ctx, refused(bus.StreamEvents))
	failures = append(failures, err)
	if events > 0 {
		freed = append(freed, bus.StreamEvents)
	}
	messages, err := d.env.Bus().TrimMessages(ctx, now.From, refused(bus.StreamMessages), d.verdicts)
	failures = append(failures, err)
	if messages.Removed > 0 {
		freed = append(freed, bus.StreamMessages)
	}
	users, err := d.env.Bus().TrimUsers(ctx, refused(bus.StreamUsers), func(ctx context.Context, t bus.TrimmedUsers) error {
		return d.db.SetInboxesTrimmed(ctx, t.To, t.Last, t.Kept)
	})
	failures = append(failures, err)
	if users > 0 {
		freed = append(freed, bus.StreamUsers)
	}
	c.Log("trimmed_events", events, "trimmed_messages", messages.Removed, "trimmed_users", users)
	if messages.HeldBy != "" && refused(bus.StreamMessages) {
		d.env.Log.Warn("the stream is full of messages that a consumer has not read; let it read, or delete it",
			"stream", bus.StreamMessages, "consumer", messages.HeldBy)
	}
	if err := d.db.EndTrim(ctx, messages.Next, freed); err != nil {
		return err
	}
	if len(now.Refused) > 0 && len(freed) > 0 {
		d.env.WakeRelayAt(time.Time{})
	}
	return errors.Join(slices.DeleteFunc(failures, func(err error) bool { return errors.Is(err, bus.ErrUnavailable) })...)
}

// eventParts is after how small a part of their stream events have it looked at: one
// that is just not full enough to be trimmed then still has room until the next look.
const eventParts = 16

// trimEventsInTime trims the stream of events whenever those recorded here have
// filled a part of it: what one caller submits within a minute may fill all of it.
func (d *deliverer) trimEventsInTime(ctx context.Context, events []store.RecordedEvent) {
	var bytes int64
	for i := range events {
		bytes += int64(len(events[i].Payload)) + store.StreamOverhead
	}
	part := d.env.Config.Bus.Sizes()[bus.StreamEvents] / eventParts
	if d.env.Bus() == nil || d.recorded.Add(bytes) < part {
		return
	}
	d.recorded.Store(0)
	if _, err := d.env.Bus().TrimEvents(ctx, false); err != nil { // there is a next time
		d.env.Log.Info("trim events", "function", "deliver", "error", err)
	}
}

// watchStreams raises and clears the alerts of streams, and has deliver look again
// while one is open.
func (d *deliverer) watchStreams(ctx context.Context) error {
	open, err := d.db.CheckStreamAlerts(ctx, d.env.Bus().StreamUsage)
	if open {
		d.env.WakeAgainAt(bus.WakeDeliver, time.Now().Add(store.TrimEveryAlert+time.Second))
	}
	return err
}

// verdicts says what is known of messages in their stream.
func (d *deliverer) verdicts(ctx context.Context, ids []string) (map[string]bus.MessageState, error) {
	asked := make([]task.ID, 0, len(ids))
	for _, id := range ids {
		if parsed, err := task.ParseID(id); err == nil {
			asked = append(asked, parsed)
		}
	}
	finished, err := d.db.FinishedMessages(ctx, asked)
	if err != nil {
		return nil, err
	}
	verdicts := make(map[string]bus.MessageState, len(finished))
	for id, confirmed := range finished {
		verdicts[id.String()] = bus.Sent
		if confirmed {
			verdicts[id.String()] = bus.Finished
		}
	}
	return verdicts, nil
}
