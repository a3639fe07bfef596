package bus

import (
	"cmp"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	mib = 1 << 20

	// wakeMB, in MiB, is several times the largest content of WAKE: for each subject a wake-up and at most
	// scheduleLimit schedules, of about 250 bytes each.
	wakeMB = 16
)

// streamConfigs returns the wanted configuration of every stream, the most important first, since the
// server may not have room for all streams. hasSchedules means that the server supports message schedules.
func streamConfigs(cfg *Config, hasSchedules bool) []jetstream.StreamConfig {
	// See doc.go for the reasons of limits retention, DiscardNew and no direct gets.
	base := jetstream.StreamConfig{
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
		MaxMsgSize: -1, MaxMsgsPerSubject: -1, Duplicates: 10 * time.Minute, Replicas: cfg.Replicas, AllowDirect: false,
	}
	events, messages, users, dead, accepted, wake := base, base, base, base, base, base

	events.Name, events.Subjects = StreamEvents, []string{EventPrefix + ">"}
	events.Description = "task events, as CloudEvents"
	events.MaxBytes = megabytes(cfg.EventsMB, 128) // no age limit: TrimEvents removes recorded events

	messages.Name, messages.Subjects = StreamMessages, []string{MessagePrefix + ">"}
	messages.Description = "reliable messages to subjects, as CloudEvents"
	messages.Duplicates = 2 * time.Minute
	messages.MaxBytes, messages.MaxAge = megabytes(cfg.MessagesMB, 256), cmp.Or(cfg.MessagesMaxAge, 7*day)

	users.Name, users.Subjects = StreamUsers, []string{UserPrefix + ">"}
	users.Description = "reliable messages to users, as CloudEvents"
	users.Duplicates = 2 * time.Minute
	users.MaxMsgsPerSubject = int64(cmp.Or(cfg.InboxMessages, 10_000)) // a message to a full inbox evicts the oldest message of the inbox
	users.MaxBytes, users.MaxAge = megabytes(cfg.UsersMB, 128), cmp.Or(cfg.UsersMaxAge, 30*day)

	dead.Name, dead.Subjects = StreamDeadLetters, []string{DeadLetterPrefix + ">"}
	dead.Description = "events that a function refused"
	dead.MaxBytes = megabytes(cfg.DeadLettersMB, 32)

	// No age limit: the function save removes messages that are saved, rejected or invalid.
	accepted.Name, accepted.Subjects = cfg.acceptStream(), []string{AcceptPrefix + ">"}
	accepted.Description = "messages that are accepted and perhaps not saved yet, as CloudEvents"
	accepted.MaxMsgsPerSubject, accepted.DiscardNewPerSubject = 1, true
	accepted.MaxBytes, accepted.Duplicates = megabytes(cfg.AcceptedMB, 256), 2*time.Minute

	// Only the newest wake-up matters, and schedules do not allow DiscardNew.
	wake.Name, wake.Subjects = StreamWake, []string{wakePrefix + "*", WakeWeChat, schedPrefix + ">"}
	wake.Description = "wake-ups and their schedules"
	wake.MaxMsgsPerSubject, wake.Discard, wake.MaxBytes = 1, jetstream.DiscardOld, wakeMB*mib
	wake.Duplicates = 2 * time.Minute
	wake.AllowMsgSchedules = hasSchedules
	return []jetstream.StreamConfig{wake, accepted, events, messages, users, dead}
}

// StreamNames returns the names of our streams, the most important first.
func (b *Bus) StreamNames() []string {
	var names []string
	for _, s := range b.streams {
		names = append(names, s.Name)
	}
	return names
}

// streamOf returns the name of our stream that stores subject, or "". It returns WAKE also for the
// subjects of queues that WAKE does not store: nobody passes these to Publish.
func (b *Bus) streamOf(subject string) string {
	for _, s := range b.streams {
		for _, pattern := range s.Subjects {
			if pattern == subject || strings.HasPrefix(subject, strings.TrimRight(pattern, "*>")) {
				return s.Name
			}
		}
	}
	return ""
}

// Sizes returns the size limits, in bytes, of EVENTS, MESSAGES, USERS and the stream of accepted messages. The
// latter is under StreamAccepted, whatever its name is.
func (c *Config) Sizes() map[string]int64 {
	sizes := map[string]int64{}
	for _, s := range streamConfigs(c, false) {
		switch s.Name {
		case StreamEvents, StreamMessages, StreamUsers:
			sizes[s.Name] = s.MaxBytes
		case c.acceptStream():
			sizes[StreamAccepted] = s.MaxBytes
		}
	}
	return sizes
}

func megabytes(mb, byDefault int) int64 { return int64(cmp.Or(mb, byDefault)) * mib }
