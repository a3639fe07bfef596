package bus

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The streams; see doc.go.
const (
	StreamWake        = "WAKE"
	StreamEvents      = "EVENTS"
	StreamMessages    = "MESSAGES"
	StreamUsers       = "USERS"
	StreamDeadLetters = "DEADLETTERS"
	StreamAccepted    = "ACCEPTED" // the default of Config.AcceptStream
)

// Subjects of wake-ups, and prefixes of the subjects of streams. A caller may send a message to a subject under
// MessagePrefix or of another service, but not to a subject under the other prefixes.
const (
	WakeSweep   = wakePrefix + "sweep"
	WakeRelay   = wakePrefix + "relay"
	WakeDeliver = wakePrefix + "deliver"
	WakeSave    = wakePrefix + "save"
	WakeWeChat  = queuePrefix + "wechat" // QueueSubject("wechat"), whose tasks a function sends

	EventDelivered = EventPrefix + "message.delivered" // the only subject of EVENTS to which deliver may publish

	EventPrefix      = "evt."
	MessagePrefix    = "msg."
	UserPrefix       = "inbox."
	AcceptPrefix     = "acc."
	DeadLetterPrefix = "dlq."
	wakePrefix       = "wake."
	queuePrefix      = wakePrefix + "queue."
	schedPrefix      = "sched."
)

// subjectCallers is a core subject: no stream stores its messages. A message is the name of a caller that was
// changed: revoked, or given a new token or other permissions.
const subjectCallers = "notify.callers"

// RecordDurable is the consumer by which the function deliver records events.
const RecordDurable = "record"

// saveDurablePrefix begins the names of the consumers of the function save.
const saveDurablePrefix = "save-"

// ShardDurable returns the name of the consumer by which a function receives one shard of the accepted
// messages. shard is from 0 to shards-1.
func ShardDurable(function string, shard, shards int) string {
	return function + "-" + strconv.Itoa(shard+1) + shardsSuffix(shards)
}

// shardsSuffix ends the names of the consumers for a number of shards. Each number has its own consumers,
// since a consumer must have seen all messages of its shard.
func shardsSuffix(shards int) string { return "-of-" + strconv.Itoa(shards) }

// QueueSubject returns the subject to wake when tasks of queue became ready.
func QueueSubject(queue string) string { return queuePrefix + escapeToken(queue) }

// UserSubject returns the subject of messages to a user.
func UserSubject(user string) string { return UserPrefix + escapeToken(user) }

// defaultReplyPrefix begins the reply subjects of a process without a NATS user.
const defaultReplyPrefix = "_INBOX"

// replyRoot begins all reply subjects, but no subject of a stream and no subject of requests to NATS.
const replyRoot = "_"

// ReplyPrefix returns the prefix of a user's reply subjects. Only this user and the operator may
// subscribe to them.
func ReplyPrefix(user string) string { return defaultReplyPrefix + "." + escapeToken(user) }

// headersPrefix begins the subject of a request for the headers of a stream's messages; the name of the stream
// ends it. One of the triggers replies. Functions may not fetch the headers themselves: see Users in doc.go.
const headersPrefix = "$SENDONCE.HEADERS."

// headerStreams are the streams that deliver trims by the headers of their messages.
var headerStreams = []string{StreamMessages, StreamUsers}

const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

// escapeToken makes a name one token of a subject: bytes outside of nameChars become = and two hex digits.
// Different names give different tokens.
func escapeToken(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; strings.IndexByte(nameChars, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02x", c)
		}
	}
	return b.String()
}

// unescapeToken is the inverse of escapeToken.
func unescapeToken(t string) (string, bool) {
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

// maxSubject is far below max_control_line of nats-server (4096 bytes). If a subject exceeds max_control_line,
// the server ends the connection, and the client library closes it permanently.
const maxSubject = 1024

// publishable reports whether a message can be published to subject: no blanks, wildcards or empty tokens, and
// at most maxSubject bytes.
func publishable(subject string) bool {
	return len(subject) <= maxSubject && !strings.ContainsAny(subject, " \t\r\n\f\x00*>") &&
		!slices.Contains(strings.Split(subject, "."), "")
}
