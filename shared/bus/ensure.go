package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Difference is one setting that is not what this version of the code wants.
type Difference struct {
	Stream     string // or stream/durable
	Field      string // as the nats tools call it
	Has, Wants string
}

// MismatchError names what an operator, or another version, set otherwise.
// Nothing was changed.
type MismatchError struct{ Differences []Difference }

// Error names every difference, one per line.
func (e *MismatchError) Error() string {
	lines := make([]string, len(e.Differences))
	for i, d := range e.Differences {
		lines[i] = fmt.Sprintf("%s: %s is %s, wanted %s", d.Stream, d.Field, d.Has, d.Wants)
	}
	return "what is in NATS differs and was left as it is:\n  " + strings.Join(lines, "\n  ")
}

// Ensure creates the streams that are missing, and gives those of an earlier
// version the subjects that are new. Otherwise those that exist are compared and
// never changed: *MismatchError names every difference. It may be called at any
// time by any number of processes.
func (b *Bus) Ensure(ctx context.Context) error {
	if b == nil {
		return nil
	}
	l, err := b.link(ctx)
	if err != nil {
		return fmt.Errorf("ensure streams: %w", err)
	}
	var differences []Difference
	for _, wants := range streams(&b.cfg, l.schedules) {
		has, err := ensureStream(ctx, l.js, wants)
		if err != nil {
			return fmt.Errorf("ensure stream %s: %w", wants.Name, err)
		}
		differences = append(differences, compare(wants.Name, streamFields(has), streamFields(wants))...)
	}
	return mismatch(differences)
}

func ensureStream(ctx context.Context, js jetstream.JetStream, wants jetstream.StreamConfig) (jetstream.StreamConfig, error) {
	s, err := js.Stream(ctx, wants.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = js.CreateStream(ctx, wants)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
			s, err = js.Stream(ctx, wants.Name)
		}
	}
	if err != nil {
		return jetstream.StreamConfig{}, err
	}
	has := s.CachedInfo().Config
	if lacks := without(wants.Subjects, has.Subjects); len(lacks) > 0 {
		has.Subjects = append(has.Subjects, lacks...)
		if s, err = js.UpdateStream(ctx, has); err != nil {
			return jetstream.StreamConfig{}, fmt.Errorf("add the subjects %s: %w", strings.Join(lacks, ", "), err)
		}
		has = s.CachedInfo().Config
	}
	return has, nil
}

// without gives those of all that some does not have.
func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

// ensureConsumer creates the durable of a route, or reports how it differs.
func ensureConsumer(ctx context.Context, l *link, r Route) (jetstream.Consumer, error) {
	wants, js := r.consumer(), l.js
	c, err := js.Consumer(ctx, r.Stream, r.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		c, err = js.CreateConsumer(ctx, r.Stream, wants)
		if errors.Is(err, jetstream.ErrConsumerExists) {
			c, err = js.Consumer(ctx, r.Stream, r.Durable)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ensure consumer %s/%s: %w", r.Stream, r.Durable, err)
	}
	has := c.CachedInfo().Config
	return c, mismatch(compare(r.Stream+"/"+r.Durable, consumerFields(has), consumerFields(wants)))
}

func mismatch(differences []Difference) error {
	if len(differences) == 0 {
		return nil
	}
	return &MismatchError{Differences: differences}
}

type field struct {
	name  string
	value any
}

func compare(name string, has, wants []field) []Difference {
	var differences []Difference
	for i, w := range wants {
		if h, w := fmt.Sprint(has[i].value), fmt.Sprint(w.value); h != w {
			differences = append(differences, Difference{Stream: name, Field: wants[i].name, Has: h, Wants: w})
		}
	}
	return differences
}

// streamFields are the settings that something of ours relies on.
func streamFields(c jetstream.StreamConfig) []field {
	return []field{
		{"subjects", slices.Sorted(slices.Values(c.Subjects))},
		{"retention", c.Retention},
		{"storage", c.Storage},
		{"discard", c.Discard},
		{"discard_new_per_subject", c.DiscardNewPerSubject},
		{"max_msgs_per_subject", c.MaxMsgsPerSubject},
		{"max_bytes", c.MaxBytes},
		{"max_age", c.MaxAge},
		{"duplicate_window", c.Duplicates},
		{"num_replicas", c.Replicas},
		{"allow_direct", c.AllowDirect},
		{"allow_msg_schedules", c.AllowMsgSchedules},
	}
}

func consumerFields(c jetstream.ConsumerConfig) []field {
	return []field{
		{"filter_subjects", append(slices.Sorted(slices.Values(c.FilterSubjects)), c.FilterSubject)},
		{"deliver_policy", c.DeliverPolicy},
		{"ack_policy", c.AckPolicy},
		{"ack_wait", c.AckWait},
		{"max_ack_pending", c.MaxAckPending},
		{"max_deliver", c.MaxDeliver},
		{"priority_groups", c.PriorityGroups},
		{"priority_timeout", c.PinnedTTL},
	}
}
