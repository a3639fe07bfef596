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

// Kind is the kind of an address. The database stores the numbers in messages.kind.
type Kind int16

const (
	Subject Kind = iota // a subject of the broker, for its subscribers
	URL                 // one receiver, by POST
	User                // the inbox of one user
)

// Limits of an address, in bytes.
const (
	maxSubject = 255
	maxURL     = 2000
	maxUser    = 50
)

const userPrefix = "user:"

// Address is the destination of a message.
type Address struct {
	Kind Kind
	Name string // the subject, the URL, or the user's name
}

// String returns the address in the form of ParseAddress.
func (a Address) String() string {
	if a.Kind == User {
		return userPrefix + a.Name
	}
	return a.Name
}

// ParseAddress parses a subject such as orders.paid, an https or http URL, or user:name.
func ParseAddress(to string) (Address, error) {
	a := Address{Subject, to}
	if name, isUser := strings.CutPrefix(to, userPrefix); isUser {
		a = Address{User, name}
	} else if strings.Contains(to, "://") {
		a = Address{URL, to}
	}
	return a, a.Check()
}

// Check validates the address.
func (a Address) Check() error {
	switch a.Kind {
	case Subject:
		return checkSubject(a.Name)
	case URL:
		return checkURL(a.Name)
	case User:
		return checkUser(a.Name)
	}
	return errors.New("must be of a kind from 0 to 2")
}

// SubjectOf returns the subject for an exchange and a routing key; "" is the default exchange.
func SubjectOf(exchange, routingKey string) (Address, error) {
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

// The names of groups in Address.Stream that are also names of streams.
const (
	StreamMessages = "MESSAGES"
	StreamUsers    = "USERS"
)

// subjectGroups is the number of groups other-<n> in Address.Stream.
const subjectGroups = 64

// Stream returns the name of the group of messages that pause together while their stream is unavailable: StreamUsers,
// StreamMessages, or for subjects of other streams other-<n>, where n, from 0 to 63, is a hash of the first token. So
// subjects of different streams may be in one group other-<n>. For a URL the name is "". SQL computes the same name for a
// redriven message.
func (a Address) Stream() string {
	switch a.Kind {
	case URL:
		return ""
	case User:
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
		return errors.New("must be user:<name>, with a name of 1 to 50 characters of A-Z a-z 0-9 . _ -")
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

// validPort reports whether a port may be called; "" is the default port.
func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && n > 0
}

func checkSubject(subject string) error {
	if !wellFormed(subject) {
		return errors.New("must be a subject such as orders.paid (tokens of printable ASCII without * and > joined by dots, at most 255 bytes), an https URL, or user:<name>")
	}
	if isReserved(subject) {
		return errors.New("must not begin with wake, sched, notify, evt, dlq, acc, inbox, _INBOX or $: these subjects are the service's and the broker's own")
	}
	return nil
}

// wellFormed reports whether s is a NATS subject without wildcards.
func wellFormed(s string) bool {
	bad := func(c rune) bool { return c <= ' ' || c > '~' || c == '*' || c == '>' }
	return len(s) <= maxSubject && !strings.ContainsFunc(s, bad) && !slices.Contains(strings.Split(s, "."), "")
}

// isReserved reports whether a subject belongs to the service or to the broker.
func isReserved(subject string) bool {
	first, _, _ := strings.Cut(strings.ToLower(subject), ".")
	return strings.HasPrefix(first, "$") || slices.Contains([]string{"wake", "sched", "notify", "evt", "dlq", "acc", "inbox", "_inbox"}, first)
}
