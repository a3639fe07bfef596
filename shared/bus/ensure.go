package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Difference is a field of a stream or consumer, with a value that is not the wanted value.
type Difference struct {
	Stream         string // or stream/durable
	Field          string // its name in the nats command line tool
	Actual, Wanted string
	Refused        string // why the value was not changed; "" for a consumer, which is never changed
	Remedy         string // what an operator can do; "" if unknown
}

// MismatchError lists the differences that remain.
type MismatchError struct{ Differences []Difference }

func (e *MismatchError) Error() string {
	lines := make([]string, len(e.Differences))
	for i, d := range e.Differences {
		lines[i] = fmt.Sprintf("%s: %s is %s, wanted %s", d.Stream, d.Field, d.Actual, d.Wanted)
		if d.Refused != "" {
			lines[i] += " (" + d.Refused + ")"
		}
		if d.Remedy != "" {
			lines[i] += ": " + d.Remedy
		}
	}
	return "these fields in NATS differ from the settings and were not changed:\n  " + strings.Join(lines, "\n  ")
}

// Reasons why a stream cannot be created.
const (
	ReasonNoRoom        = "no_room"        // the servers have less room than the stream reserves
	ReasonSubjectsTaken = "subjects_taken" // another stream has some of the subjects
	ReasonOther         = "error"
)

// StreamError reports why a stream cannot be created and what an operator can do.
type StreamError struct {
	Stream string
	Reason string // ReasonNoRoom, ReasonSubjectsTaken or ReasonOther
	Remedy string // "" if unknown
	Cause  error
}

func (e *StreamError) Error() string {
	text := fmt.Sprintf("stream %s cannot be created: %v", e.Stream, e.Cause)
	if e.Remedy != "" {
		text += ": " + e.Remedy
	}
	return text
}

func (e *StreamError) Unwrap() error { return e.Cause }

// Ensure creates missing streams and updates streams that differ from the settings; see doc.go for the
// exceptions. If one stream fails, Ensure continues with the next. The result joins the errors of all streams:
// *StreamError, *MismatchError or any other error. Several processes may call Ensure at the same time.
func (b *Bus) Ensure(ctx context.Context) error {
	if b == nil {
		return nil
	}
	conn, err := b.connection(ctx)
	if err != nil {
		return fmt.Errorf("ensure streams: %w", err)
	}
	var errs []error
	for _, wanted := range streamConfigs(&b.cfg, conn.hasSchedules) {
		errs = append(errs, b.ensureStream(ctx, conn, wanted))
	}
	return errors.Join(errs...)
}

// EnsureStream is Ensure for one stream.
func (b *Bus) EnsureStream(ctx context.Context, conn *Connection, name string) error {
	all := streamConfigs(&b.cfg, conn.hasSchedules)
	if i := slices.IndexFunc(all, func(s jetstream.StreamConfig) bool { return s.Name == name }); i >= 0 {
		return b.ensureStream(ctx, conn, all[i])
	}
	return nil
}

// errStreamMissing reports that one of our streams does not exist. Only the trigger creates streams: every other
// process can only try again later.
func errStreamMissing(stream string) error {
	return fmt.Errorf("stream %s is missing: the trigger creates it", stream)
}

func (b *Bus) ensureStream(ctx context.Context, conn *Connection, wanted jetstream.StreamConfig) error {
	s, err := b.getOrCreateStream(ctx, conn, wanted)
	if err != nil {
		return err
	}
	info := s.CachedInfo()
	return b.updateStream(ctx, conn.js, info.Config, wanted, info.State.Bytes)
}

// getOrCreateStream returns a stream, and creates it if it is missing. It does not change an existing stream.
func (b *Bus) getOrCreateStream(ctx context.Context, conn *Connection, wanted jetstream.StreamConfig) (jetstream.Stream, error) {
	s, err := conn.js.Stream(ctx, wanted.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = conn.js.CreateStream(ctx, wanted)
		switch {
		case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse): // another process created it meanwhile
			s, err = conn.js.Stream(ctx, wanted.Name)
		case err != nil:
			return nil, b.streamError(ctx, conn, wanted, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ensure stream %s: %w", wanted.Name, err)
	}
	return s, nil
}

// streamError adds the reason and the remedy to an error of creating a stream.
func (b *Bus) streamError(ctx context.Context, conn *Connection, wanted jetstream.StreamConfig, cause error) error {
	e := &StreamError{Stream: wanted.Name, Reason: ReasonOther, Cause: cause}
	var api *jetstream.APIError
	if !errors.As(cause, &api) {
		return e
	}
	switch api.ErrorCode {
	case codeNoStorage, codeNoResources, codeNoPeers:
		e.Reason = ReasonNoRoom
		e.Remedy = fmt.Sprintf("the stream reserves %d MiB: %s", wanted.MaxBytes/mib, b.cfg.sizeRemedy(wanted.Name))
	case codeOverlap:
		e.Reason = ReasonSubjectsTaken
		e.Remedy = b.subjectsRemedy(ctx, conn, wanted)
	}
	return e
}

const (
	codeNoPeers     = jetstream.ErrorCode(10005) // no server of the cluster has the room
	codeNoResources = jetstream.ErrorCode(10023) // the account or the servers do not have the room
	codeNoStorage   = jetstream.ErrorCode(10047) // the server does not have the room
	codeOverlap     = jetstream.ErrorCode(10065) // another stream has some of the subjects
)

// sizeRemedy returns how an operator can give a stream its wanted size.
func (c *Config) sizeRemedy(stream string) string {
	const text = "raise max_file_store of the NATS servers"
	switch stream {
	case StreamWake: // no setting has the size of WAKE
		return text
	case c.acceptStream():
		stream = "ACCEPTED"
	}
	return text + ", or lower SENDONCE_STREAM_" + stream + "_MB"
}

// fieldRemedy returns what an operator can do about a field that NATS refuses to change.
func (c *Config) fieldRemedy(stream, field string) string {
	switch {
	case field == "max_bytes":
		return c.sizeRemedy(stream)
	case field == "num_replicas":
		return "run at least the wanted number of NATS servers in one cluster, or lower SENDONCE_NATS_REPLICAS"
	case stream == StreamWake:
		return "'nats stream rm WAKE', at any time: WAKE has only wake-ups and schedules, which safety ticks replace, and the trigger creates it again"
	case stream == c.acceptStream():
		return fmt.Sprintf("set TWO_PHASE_ENABLED=false, run 'sendonce drain' until it says 0, then 'nats stream rm %s': the trigger creates it again", stream)
	}
	return fmt.Sprintf("when its messages are not needed any more, 'nats stream rm %s': the trigger creates it again", stream)
}

// subjectsRemedy returns how to free the subjects that another stream has.
func (b *Bus) subjectsRemedy(ctx context.Context, conn *Connection, wanted jetstream.StreamConfig) string {
	owners := map[string]bool{}
	for _, subject := range wanted.Subjects {
		for name := range conn.js.StreamNames(ctx, jetstream.WithStreamListSubject(subject)).Name() {
			owners[name] = true
		}
	}
	if len(owners) == 0 {
		return "" // the list is not available
	}
	names := strings.Join(slices.Sorted(maps.Keys(owners)), " and ")
	if wanted.Name != b.cfg.acceptStream() {
		return fmt.Sprintf("its subjects %s are those of the stream %s: give that stream other subjects (nats stream edit) or remove it (nats stream rm)",
			strings.Join(wanted.Subjects, ", "), names)
	}
	return fmt.Sprintf("its subjects belong to the stream %[1]s, which may hold accepted messages that are not saved: "+
		"set TWO_PHASE_STREAM=%[1]s and TWO_PHASE_ENABLED=false, run 'sendonce drain' until it says 0, then 'nats stream rm %[1]s', then set TWO_PHASE_STREAM=%[2]s", names, wanted.Name)
}

// updateStream changes all differing fields in one request. If NATS refuses that request, updateStream sends one
// request for each field. stored is the number of bytes in the stream. updateStream does not lower the max_bytes
// of a stream with DiscardNew to less than twice stored, since the stream would soon refuse messages.
func (b *Bus) updateStream(ctx context.Context, js jetstream.JetStream, actual, wanted jetstream.StreamConfig, stored uint64) error {
	var remaining []Difference
	smaller := actual.MaxBytes <= 0 || wanted.MaxBytes < actual.MaxBytes
	if wanted.Discard == jetstream.DiscardNew && smaller && wanted.MaxBytes < 2*int64(stored) {
		remaining = append(remaining, Difference{Stream: wanted.Name, Field: "max_bytes", Actual: fmt.Sprint(actual.MaxBytes), Wanted: fmt.Sprint(wanted.MaxBytes),
			Refused: fmt.Sprintf("the stream holds %d bytes: a trigger that connects later makes it smaller if it then holds at most half of the wanted size", stored)})
		wanted.MaxBytes = actual.MaxBytes
	}
	wanted.Subjects = mergeSubjects(actual.Subjects, wanted.Subjects)
	wanted.Replicas = max(wanted.Replicas, actual.Replicas)
	wanted.AllowMsgSchedules = wanted.AllowMsgSchedules || actual.AllowMsgSchedules
	refusals := map[string]string{} // by field
	update := func(fields ...field[jetstream.StreamConfig]) error {
		refusal, err := b.updateFields(ctx, js, &actual, &wanted, fields)
		if err != nil {
			return fmt.Errorf("change stream %s: %w", wanted.Name, err)
		}
		for _, f := range fields {
			refusals[f.name] = refusal
		}
		return nil
	}
	differing := diffFields(streamFields, &actual, &wanted)
	if len(differing) > 1 {
		if err := update(differing...); err != nil {
			return err
		}
		differing = diffFields(differing, &actual, &wanted)
	}
	// One by one, and again: NATS may accept a field that it refused before another field was changed.
	for progress := true; progress; {
		before := len(differing)
		for _, f := range differing {
			if err := update(f); err != nil {
				return err
			}
		}
		differing = diffFields(differing, &actual, &wanted)
		progress = len(differing) < before
	}
	for _, f := range differing {
		remaining = append(remaining, Difference{Stream: wanted.Name, Field: f.name, Actual: f.text(&actual), Wanted: f.text(&wanted),
			Refused: "NATS refused the change: " + refusals[f.name], Remedy: b.cfg.fieldRemedy(wanted.Name, f.name)})
	}
	return mismatch(remaining)
}

// updateFields changes fields in one request. refusal is "", or says why NATS refuses the request; err is a
// temporary failure.
func (b *Bus) updateFields(ctx context.Context, js jetstream.JetStream, actual, wanted *jetstream.StreamConfig, fields []field[jetstream.StreamConfig]) (refusal string, err error) {
	next := *actual
	for _, f := range fields {
		f.copy(&next, wanted)
	}
	_, err = js.UpdateStream(ctx, next)
	var api *jetstream.APIError
	if errors.As(err, &api) && api.Code != http.StatusServiceUnavailable {
		return api.Error(), nil
	}
	if err != nil {
		return "", err
	}
	for _, f := range fields {
		level := slog.LevelInfo
		if f.text(wanted) == none { // sources, a mirror, republishing or a subject transform was removed
			level = slog.LevelWarn
		}
		b.log.Log(ctx, level, "changed a stream to match the settings", "stream", wanted.Name, "field", f.name, "from", f.text(actual), "to", f.text(wanted))
	}
	*actual = next
	return "", nil
}

// mergeSubjects returns the subjects of actual and wanted, without those of actual that a wildcard of wanted covers.
func mergeSubjects(actual, wanted []string) []string {
	all := slices.DeleteFunc(slices.Clone(actual), func(s string) bool {
		return !slices.Contains(wanted, s) && slices.ContainsFunc(wanted, func(w string) bool {
			prefix, isWildcard := strings.CutSuffix(w, ">")
			return isWildcard && strings.HasPrefix(s, prefix)
		})
	})
	for _, w := range wanted {
		if !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

// EnsureConsumer returns a durable consumer, and creates it if it is missing. EnsureConsumer does not change an
// existing consumer: if the consumer differs from wanted, EnsureConsumer returns it with a *MismatchError. If the consumer
// is ahead of its stream, EnsureConsumer creates it again, and all messages of the stream are delivered again.
func (conn *Connection) EnsureConsumer(ctx context.Context, stream string, wanted jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	name := stream + "/" + wanted.Durable
	c, err := conn.js.Consumer(ctx, stream, wanted.Durable)
	if err == nil {
		err = conn.deleteIfAhead(ctx, stream, c)
	}
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		c, err = conn.js.CreateConsumer(ctx, stream, wanted)
		if errors.Is(err, jetstream.ErrConsumerExists) {
			c, err = conn.js.Consumer(ctx, stream, wanted.Durable)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ensure consumer %s: %w", name, err)
	}
	actual := c.CachedInfo().Config
	var differences []Difference
	for _, f := range diffFields(consumerFields, &actual, &wanted) {
		differences = append(differences, Difference{Stream: name, Field: f.name, Actual: f.text(&actual), Wanted: f.text(&wanted)})
	}
	return c, mismatch(differences)
}

// deleteIfAhead deletes a consumer that is ahead of its stream. Then it returns jetstream.ErrConsumerNotFound.
func (conn *Connection) deleteIfAhead(ctx context.Context, stream string, c jetstream.Consumer) error {
	s, err := conn.js.Stream(ctx, stream)
	if err != nil || !isAhead(c.CachedInfo(), s.CachedInfo()) {
		return err
	}
	durable := c.CachedInfo().Config.Durable
	conn.log.Warn("a consumer has received messages that its stream has lost: it is created again", "stream", stream, "consumer", durable)
	if err := conn.js.DeleteConsumer(ctx, stream, durable); err != nil {
		return err
	}
	return jetstream.ErrConsumerNotFound
}

// isAhead reports whether a consumer has received messages that its stream does not have yet. stream must be read after
// consumer. After a power loss, a stream with three replicas, or any stream before nats-server 2.14, may have lost its end
// while the state of the consumer was kept. The consumer would never deliver the messages that get the lost sequence numbers.
func isAhead(consumer *jetstream.ConsumerInfo, stream *jetstream.StreamInfo) bool {
	return consumer.Delivered.Stream > stream.State.LastSeq
}

func mismatch(differences []Difference) error {
	if len(differences) == 0 {
		return nil
	}
	return &MismatchError{Differences: differences}
}

// field is a configuration field on which the bus relies. Config is the type of the configuration of a stream or
// consumer.
type field[Config any] struct {
	name string            // in the nats command line tool
	at   func(*Config) any // returns a pointer to the field
}

// none is the text of an unset field.
const none = "none"

func (f field[Config]) text(c *Config) string {
	value := reflect.ValueOf(f.at(c)).Elem()
	switch kind := value.Kind(); {
	case kind != reflect.Pointer && kind != reflect.Slice:
		return fmt.Sprint(value.Interface())
	case value.IsNil():
		return none
	}
	text, err := json.Marshal(value.Interface())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (f field[Config]) copy(to, from *Config) {
	reflect.ValueOf(f.at(to)).Elem().Set(reflect.ValueOf(f.at(from)).Elem())
}

// diffFields returns those of fields in which two configurations differ.
func diffFields[Config any](fields []field[Config], actual, wanted *Config) []field[Config] {
	return slices.DeleteFunc(slices.Clone(fields), func(f field[Config]) bool { return f.text(actual) == f.text(wanted) })
}

var streamFields = []field[jetstream.StreamConfig]{
	{"subjects", func(c *jetstream.StreamConfig) any { return &c.Subjects }},
	{"retention", func(c *jetstream.StreamConfig) any { return &c.Retention }},
	{"storage", func(c *jetstream.StreamConfig) any { return &c.Storage }},
	{"discard", func(c *jetstream.StreamConfig) any { return &c.Discard }},
	{"max_msg_size", func(c *jetstream.StreamConfig) any { return &c.MaxMsgSize }},
	{"no_ack", func(c *jetstream.StreamConfig) any { return &c.NoAck }},
	{"max_msgs_per_subject", func(c *jetstream.StreamConfig) any { return &c.MaxMsgsPerSubject }},
	{"discard_new_per_subject", func(c *jetstream.StreamConfig) any { return &c.DiscardNewPerSubject }},
	{"max_bytes", func(c *jetstream.StreamConfig) any { return &c.MaxBytes }},
	{"max_age", func(c *jetstream.StreamConfig) any { return &c.MaxAge }},
	{"duplicate_window", func(c *jetstream.StreamConfig) any { return &c.Duplicates }},
	{"num_replicas", func(c *jetstream.StreamConfig) any { return &c.Replicas }},
	{"allow_direct", func(c *jetstream.StreamConfig) any { return &c.AllowDirect }},
	{"allow_msg_schedules", func(c *jetstream.StreamConfig) any { return &c.AllowMsgSchedules }},
	// Our streams never have these.
	{"sources", func(c *jetstream.StreamConfig) any { return &c.Sources }},
	{"mirror", func(c *jetstream.StreamConfig) any { return &c.Mirror }},
	{"republish", func(c *jetstream.StreamConfig) any { return &c.RePublish }},
	{"subject_transform", func(c *jetstream.StreamConfig) any { return &c.SubjectTransform }},
}

var consumerFields = []field[jetstream.ConsumerConfig]{
	{"filter_subjects", func(c *jetstream.ConsumerConfig) any {
		all := append(slices.Sorted(slices.Values(c.FilterSubjects)), c.FilterSubject)
		return &all
	}},
	{"deliver_policy", func(c *jetstream.ConsumerConfig) any { return &c.DeliverPolicy }},
	{"ack_policy", func(c *jetstream.ConsumerConfig) any { return &c.AckPolicy }},
	{"ack_wait", func(c *jetstream.ConsumerConfig) any { return &c.AckWait }},
	{"max_ack_pending", func(c *jetstream.ConsumerConfig) any { return &c.MaxAckPending }},
	{"max_deliver", func(c *jetstream.ConsumerConfig) any { return &c.MaxDeliver }},
	{"priority_groups", func(c *jetstream.ConsumerConfig) any { return &c.PriorityGroups }},
	{"priority_timeout", func(c *jetstream.ConsumerConfig) any { return &c.PinnedTTL }},
}
