package bus

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// Config has the settings of the connection to NATS and of the streams. A size, age or number of messages of 0 means the default.
type Config struct {
	URL             string        `envconfig:"NATS_URL" secret:"true" desc:"NATS, as nats://host:4222; several are separated by commas; empty runs without events and wake-ups"`
	User            string        `envconfig:"NATS_USER" desc:"user name for NATS"`
	Password        string        `envconfig:"NATS_PASSWORD" secret:"true" desc:"password for NATS"`
	CredentialsFile string        `envconfig:"NATS_CREDENTIALS" desc:"path of a NATS credentials file; not together with NATS_USER"`
	CAFile          string        `envconfig:"NATS_CA" desc:"path of the CA certificates, in PEM, that verify the certificate of NATS; with it, or with tls:// in NATS_URL, the connection is encrypted; empty = the CAs of the system"`
	InboxPrefix     string        `envconfig:"NATS_INBOX_PREFIX" desc:"prefix of the subjects at which this process receives replies; empty = _INBOX.<user>, and _INBOX without a user"`
	Name            string        `envconfig:"NATS_CLIENT_NAME" default:"sendonce" desc:"name of this process in the connection lists of NATS"`
	Replicas        int           `envconfig:"SENDONCE_NATS_REPLICAS" default:"1" desc:"copies of each stream that NATS keeps: 1, 3 or 5"`
	EventsMB        int           `envconfig:"SENDONCE_STREAM_EVENTS_MB" default:"128" desc:"size limit of the stream EVENTS in MiB, 1 to 1048576; NATS reserves it. While it is full, events of tasks wait in Postgres"`
	MessagesMB      int           `envconfig:"SENDONCE_STREAM_MESSAGES_MB" default:"256" desc:"size limit of the stream MESSAGES, as SENDONCE_STREAM_EVENTS_MB; while it is full, messages to subjects wait in Postgres"`
	UsersMB         int           `envconfig:"SENDONCE_STREAM_USERS_MB" default:"128" desc:"size limit of the stream USERS, as SENDONCE_STREAM_EVENTS_MB; while it is full, messages to users wait in Postgres"`
	AcceptedMB      int           `envconfig:"SENDONCE_STREAM_ACCEPTED_MB" default:"256" desc:"size limit of the stream of accepted messages, as SENDONCE_STREAM_EVENTS_MB; while it is full, messages are saved at once, or refused if TWO_PHASE_FAIL_OPEN is false"`
	DeadLettersMB   int           `envconfig:"SENDONCE_STREAM_DEADLETTERS_MB" default:"32" desc:"size limit of the stream DEADLETTERS, as SENDONCE_STREAM_EVENTS_MB; while it is full, refused events go to the table dead_letters"`
	MessagesMaxAge  time.Duration `envconfig:"SENDONCE_STREAM_MESSAGES_MAX_AGE" default:"168h" desc:"how long the stream MESSAGES keeps a message at most, 1h to 8760h"`
	UsersMaxAge     time.Duration `envconfig:"SENDONCE_STREAM_USERS_MAX_AGE" default:"720h" desc:"how long the stream USERS keeps a message at most, 1h to 8760h"`
	InboxMessages   int           `envconfig:"SENDONCE_INBOX_MESSAGES" default:"10000" desc:"how many messages the stream USERS keeps for one user at most, 100 to 1000000; then a newer message replaces the oldest, which stays in Postgres; one sender may send a quarter of this number to one user within 15 minutes"`
	AcceptStream    string        `ignored:"true"` // the name of the stream of accepted messages; "" = ACCEPTED
	AcceptShards    int           `ignored:"true"` // shards of that stream, 1 to 64; messages of different shards are saved in parallel; 0 = 1

	// For tests.
	TrimNotice time.Duration    `ignored:"true"` // how long TrimUsers waits between the call of its parameter note and the removal of messages; 0 = 3 s
	Now        func() time.Time `ignored:"true"` // the clock for the age of messages; nil = time.Now
}

// ago returns the time that is age before now.
func (c *Config) ago(age time.Duration) time.Time {
	if c.Now == nil {
		return time.Now().Add(-age)
	}
	return c.Now().Add(-age)
}

// SettingError reports a setting with a wrong value, and which values are accepted.
type SettingError struct{ Name, Message string }

func (e *SettingError) Error() string { return e.Name + " " + e.Message }

// Validate refuses a size, age or number of messages that is 0: only a Config in code may have 0, for the default.
func (c *Config) Validate() (bad []task.Field) {
	for _, setting := range []struct {
		name string
		zero bool
	}{
		{"EVENTS_MB", c.EventsMB == 0}, {"MESSAGES_MB", c.MessagesMB == 0}, {"USERS_MB", c.UsersMB == 0}, {"ACCEPTED_MB", c.AcceptedMB == 0},
		{"DEADLETTERS_MB", c.DeadLettersMB == 0}, {"MESSAGES_MAX_AGE", c.MessagesMaxAge == 0}, {"USERS_MAX_AGE", c.UsersMaxAge == 0},
	} {
		if setting.zero {
			bad = append(bad, task.Field{Name: "SENDONCE_STREAM_" + setting.name, Message: "must be more than 0"})
		}
	}
	if c.InboxMessages == 0 {
		bad = append(bad, task.Field{Name: "SENDONCE_INBOX_MESSAGES", Message: "must be more than 0"})
	}
	return bad
}

const day = 24 * time.Hour

// check checks the values, for Open. Unlike Validate, it accepts 0 where 0 means the default.
func (c *Config) check() error {
	wrong := func(name, format string, values ...any) error {
		return &SettingError{name, fmt.Sprintf(format, values...)}
	}
	for name, mb := range map[string]int{
		"EVENTS": c.EventsMB, "MESSAGES": c.MessagesMB, "USERS": c.UsersMB, "ACCEPTED": c.AcceptedMB, "DEADLETTERS": c.DeadLettersMB,
	} {
		if mb < 0 || mb > 1<<20 {
			return wrong("SENDONCE_STREAM_"+name+"_MB", "is %d but must be between 1 and 1048576", mb)
		}
	}
	for name, age := range map[string]time.Duration{"MESSAGES": c.MessagesMaxAge, "USERS": c.UsersMaxAge} {
		if age != 0 && (age < time.Hour || age > 365*day) {
			return wrong("SENDONCE_STREAM_"+name+"_MAX_AGE", "is %v but must be between 1h and 8760h", age)
		}
	}
	switch {
	case c.InboxMessages != 0 && (c.InboxMessages < 100 || c.InboxMessages > 1_000_000):
		return wrong("SENDONCE_INBOX_MESSAGES", "is %d but must be between 100 and 1000000", c.InboxMessages)
	case c.Replicas != 1 && c.Replicas != 3 && c.Replicas != 5:
		return wrong("SENDONCE_NATS_REPLICAS", "is %d but must be 1, 3 or 5", c.Replicas)
	case c.CredentialsFile != "" && c.User != "":
		return wrong("NATS_USER", "and NATS_CREDENTIALS exclude each other")
	case !publishable(c.acceptStream()) || strings.ContainsAny(c.acceptStream(), "./\\"):
		return wrong("TWO_PHASE_STREAM", "is %q but must be the name of a stream: no blanks, dots, slashes or wildcards", c.AcceptStream)
	case c.InboxPrefix != "" && !(publishable(c.InboxPrefix) && strings.HasPrefix(c.InboxPrefix, replyRoot)):
		return wrong("NATS_INBOX_PREFIX", "is %q but must be a subject that begins with _, without blanks, wildcards or empty tokens, such as _INBOX.me", c.InboxPrefix)
	}
	for name, file := range map[string]string{"NATS_CREDENTIALS": c.CredentialsFile, "NATS_CA": c.CAFile} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return wrong(name, "cannot be read: %v", err)
		}
	}
	return nil
}

// replyPrefix returns the prefix of the subjects on which this process receives replies.
func (c *Config) replyPrefix() string {
	if c.InboxPrefix != "" {
		return c.InboxPrefix
	}
	user := c.User
	first, _, _ := strings.Cut(c.URL, ",")
	if u, err := url.Parse(strings.TrimSpace(first)); err == nil && u.User != nil {
		user = u.User.Username()
	}
	if user == "" {
		return defaultReplyPrefix
	}
	return ReplyPrefix(user)
}

func (c *Config) acceptStream() string { return cmp.Or(c.AcceptStream, StreamAccepted) }

func (c *Config) acceptShards() int { return cmp.Or(c.AcceptShards, 1) }
