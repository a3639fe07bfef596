package message

import (
	"crypto/sha256"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Kind is the kind of place that a message goes to. The numbers are those of
// messages.kind.
type Kind int16

// The kinds of addresses.
const (
	Subject Kind = iota // of the broker; whoever subscribes receives
	URL                 // of one receiver, by POST
	User                // the inbox of one user
)

// Limits of an address, in bytes.
const (
	maxSubject = 255
	maxURL     = 2000
	maxUser    = 50
)

const userPrefix = "user:"

// Address is where a message goes.
type Address struct {
	Kind Kind
	Name string // the subject, the URL, or the user's name
}

// String is the address as ParseAddress reads it.
func (a Address) String() string {
	if a.Kind == User {
		return userPrefix + a.Name
	}
	return a.Name
}

// ParseAddress reads a subject such as orders.paid, an https or http URL, or
// user:name. The error says what would be accepted.
func ParseAddress(to string) (Address, error) {
	if name, isUser := strings.CutPrefix(to, userPrefix); isUser {
		return Address{User, name}, checkUser(name)
	}
	if strings.Contains(to, "://") {
		return Address{URL, to}, checkURL(to)
	}
	return Address{Subject, to}, checkSubject(to)
}

// Routed is the subject that stands for an exchange and a routing key, "" being
// the default exchange. The error says what would be accepted of the two.
func Routed(exchange, routingKey string) (Address, error) {
	if exchange == "" {
		exchange = "default"
	}
	subject := "msg." + exchange + "." + routingKey
	switch {
	case strings.Contains(exchange, "."):
		return Address{}, errors.New("exchange_name must not contain a dot: it is one token of the subject msg.<exchange_name>.<routing_key>")
	case !wellFormed(subject):
		return Address{}, errors.New("must make a subject msg.<exchange_name>.<routing_key>: tokens of printable ASCII without * and > joined by dots, at most 255 bytes")
	}
	return Address{Subject, subject}, nil
}

// The names of the streams by which what waits for them is grouped.
const (
	StreamMessages = "MESSAGES"
	StreamUsers    = "USERS"
)

// subjectGroups bounds into how many groups the subjects fall that are not ours.
const subjectGroups = 64

// Stream names the group of messages that wait together while their stream is
// away: StreamUsers, StreamMessages, or for a subject of somebody else's stream
// other-<n>, one of 64 by its first token. "" for a URL. The database computes the
// same for a message that is sent anew.
func (a Address) Stream() string {
	switch {
	case a.Kind == URL:
		return ""
	case a.Kind == User:
		return StreamUsers
	}
	first, _, _ := strings.Cut(a.Name, ".")
	if first == "msg" {
		return StreamMessages
	}
	return "other-" + strconv.Itoa(int(sha256.Sum256([]byte(first))[0])%subjectGroups)
}

func checkUser(name string) error {
	bad := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-')
	}
	if name == "" || name == "." || name == ".." || len(name) > maxUser || strings.ContainsFunc(name, bad) {
		return errors.New("must name a user after user: by 1 to 50 characters of A-Z a-z 0-9 . _ -")
	}
	return nil
}

func checkURL(to string) error {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.Fragment != "" || len(to) > maxURL ||
		strings.ContainsFunc(to, unicode.IsSpace) || !validPort(u.Port()) {
		return errors.New("must be an https (or http) URL without user name, fragment and blanks, at most 2000 bytes")
	}
	return nil
}

// validPort tells whether a port may be called; "" is that of the scheme.
func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && n > 0
}

func checkSubject(subject string) error {
	if !wellFormed(subject) {
		return errors.New("must be a subject such as orders.paid (tokens of printable ASCII without * and > joined by dots, at most 255 bytes), an https URL, or user:<name>")
	}
	if ours(subject) {
		return errors.New("must not begin with wake, sched, notify, evt, dlq, acc, inbox, _INBOX or $: these subjects are the service's and the broker's own")
	}
	return nil
}

// wellFormed tells whether s is a subject of NATS without wildcards.
func wellFormed(s string) bool {
	bad := func(c rune) bool { return c <= ' ' || c > '~' || c == '*' || c == '>' }
	return len(s) <= maxSubject && !strings.ContainsFunc(s, bad) && !slices.Contains(strings.Split(s, "."), "")
}

// ours tells whether a subject is not for messages: hints, notifications, schedules, events,
// dead letters, accepted messages, inboxes, and those of the broker itself.
func ours(subject string) bool {
	first, _, _ := strings.Cut(strings.ToLower(subject), ".")
	return strings.HasPrefix(first, "$") || slices.Contains([]string{"wake", "sched", "notify", "evt", "dlq", "acc", "inbox", "_inbox"}, first)
}
