package bus

import (
	"encoding/hex"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The streams. doc.go says what each is for.
const (
	StreamWake        = "WAKE"
	StreamEvents      = "EVENTS"
	StreamMessages    = "MESSAGES"
	StreamUsers       = "USERS"
	StreamDeadLetters = "DEADLETTERS"
)

// The subjects that are woken, and the first tokens of all others of ours. No
// subject that a caller chooses may begin with one of these except MessagePrefix.
const (
	WakeSweep   = wakePrefix + "sweep"
	WakeRelay   = wakePrefix + "relay"
	WakeDeliver = wakePrefix + "deliver"

	EventPrefix   = "evt."
	MessagePrefix = "msg."
	UserPrefix    = "inbox."

	wakePrefix  = "wake."
	queuePrefix = wakePrefix + "queue."
	schedPrefix = "sched."
	deadPrefix  = "dlq."
)

// QueueSubject is what Wake is told when tasks of queue became ready.
func QueueSubject(queue string) string { return queuePrefix + token(queue) }

// UserSubject is where messages to a user are published.
func UserSubject(user string) string { return UserPrefix + token(user) }

// token makes any name one token of a subject: what is not [A-Za-z0-9_-] is
// written =XX. Different names give different tokens.
func token(name string) string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('=')
		b.WriteString(hex.EncodeToString([]byte{c}))
	}
	return b.String()
}

// nameOf is the name that token made t of.
func nameOf(t string) (string, bool) {
	var b strings.Builder
	for {
		plain, rest, escaped := strings.Cut(t, "=")
		b.WriteString(plain)
		if !escaped {
			return b.String(), true
		}
		if len(rest) < 2 {
			return "", false
		}
		c, err := hex.DecodeString(rest[:2])
		if err != nil {
			return "", false
		}
		b.Write(c)
		t = rest[2:]
	}
}

const (
	day = 24 * time.Hour
	mib = 1 << 20
)

// streams is every stream as it should be on a server that has, or has not,
// message schedules.
func streams(replicas int, schedules bool) []jetstream.StreamConfig {
	// An id is only deduplicated for sure where it outlives its acknowledgement
	// (limits retention), and where a full stream refuses instead of forgetting.
	log := jetstream.StreamConfig{
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
		MaxMsgsPerSubject: -1, MaxBytes: 1024 * mib, MaxAge: 7 * day, Duplicates: 10 * time.Minute,
		Replicas: replicas, AllowDirect: true,
	}
	events, messages, users, dead, wake := log, log, log, log, log

	events.Name, events.Subjects = StreamEvents, []string{EventPrefix + ">"}
	events.Description = "task events, as CloudEvents"

	messages.Name, messages.Subjects = StreamMessages, []string{MessagePrefix + ">"}
	messages.Description = "reliable messages to subjects, as CloudEvents"
	messages.Duplicates = 2 * time.Minute

	users.Name, users.Subjects = StreamUsers, []string{UserPrefix + ">"}
	users.Description = "reliable messages to users, as CloudEvents"
	users.Duplicates = 2 * time.Minute
	users.MaxAge = 30 * day

	dead.Name, dead.Subjects = StreamDeadLetters, []string{deadPrefix + ">"}
	dead.Description = "events that a function refused"
	dead.MaxBytes, dead.MaxAge = 256*mib, 0

	// A hint is worth only its last copy, and schedules do not allow DiscardNew.
	wake.Name, wake.Subjects = StreamWake, []string{wakePrefix + "*", schedPrefix + ">"}
	wake.Description = "wake-ups and their schedules"
	wake.MaxMsgsPerSubject, wake.Discard, wake.MaxBytes, wake.MaxAge = 1, jetstream.DiscardOld, 64*mib, 0
	wake.Duplicates = 2 * time.Minute
	wake.AllowMsgSchedules = schedules
	return []jetstream.StreamConfig{wake, events, messages, users, dead}
}

// ours says whether one of our streams takes subject.
func ours(subject string) bool {
	for _, prefix := range []string{wakePrefix, schedPrefix, EventPrefix, MessagePrefix, UserPrefix, deadPrefix} {
		if strings.HasPrefix(subject, prefix) {
			return true
		}
	}
	return false
}

// Route is one durable consumer and the event function that it feeds.
type Route struct {
	Stream   string
	Durable  string        // names the consumer and this route everywhere
	Filter   string        // the subjects of Stream that are meant
	Function string        // events are posted to /events/{Function}
	InFlight int           // deliveries at once, all triggers together, those that wait to come again included; at least 1
	AckWait  time.Duration // silence of a trigger after which another delivers; heartbeats are sent three times as often
	Timeout  time.Duration // of one delivery; 0 = the trigger's
	Every    time.Duration // a safety tick to Filter, at least 1 s; 0 = none. Only for subjects that Wake takes
}

// Routes feeds the event functions. A route with a safety tick gets one every
// tick.
func Routes(tick time.Duration) []Route {
	return []Route{
		{Stream: StreamWake, Durable: "sweep", Filter: WakeSweep, Function: "sweep", InFlight: 1, AckWait: 30 * time.Second, Every: tick},
		{Stream: StreamWake, Durable: "relay", Filter: WakeRelay, Function: "relay", InFlight: 1, AckWait: 30 * time.Second, Every: tick},
		// While one waits for a receiver that does not answer, others hear of what came meanwhile.
		{Stream: StreamWake, Durable: "deliver", Filter: WakeDeliver, Function: "deliver", InFlight: 4, AckWait: 30 * time.Second, Every: tick},
		{Stream: StreamEvents, Durable: "record", Filter: EventPrefix + ">", Function: "deliver", InFlight: 32, AckWait: 30 * time.Second},
	}
}

func (r *Route) consumer() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: r.Durable, FilterSubject: r.Filter,
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: r.AckWait, MaxAckPending: r.InFlight,
		MaxDeliver: -1, // a message that used up its deliveries would just stay, unseen
	}
}
