package message

import "crypto/subtle"

// Confirmer is the caller that confirms a message, with its permissions.
type Confirmer struct {
	User     string   // its own name
	Consumer string   // the consumer that it confirms for: itself, or one named by an admin
	Receives []string // granted patterns of subjects
	Token    string   // from a delivery to a URL, "" = none
	Admin    bool
}

// Ground is the permission by which a confirmation counts.
type Ground int8

// The grounds of a confirmation.
const (
	NoGround    Ground = iota // the message is for another caller
	IsAddressee               // the addressed user, or granted the subject
	HasToken                  // knows the token of a delivery to the URL
	ByOperator                // an admin
)

// GroundOf returns the ground on which c may confirm a message to an address. token is the one in the
// message's deliveries; "" = none.
func (c Confirmer) GroundOf(to Address, token string) Ground {
	if c.Consumer == c.User {
		switch {
		case to.Kind == User && to.Name == c.User,
			to.Kind == Subject && coveredBy(c.Receives, to.Name):
			return IsAddressee
		case to.Kind == URL && token != "" && subtle.ConstantTimeCompare([]byte(token), []byte(c.Token)) == 1:
			return HasToken
		}
	}
	if c.Admin {
		return ByOperator
	}
	return NoGround
}

// FirstSend is what is known about the first send of a message.
type FirstSend int8

// What may be known of a first send.
const (
	NotSent   FirstSend = iota // nobody has the message, and it is not due
	MaybeSent                  // due: it may have been sent, and the result is not stored yet
	WasSent
)

// FirstSend reports whether a receiver can have the message, so that a confirmation on this ground may
// count.
func (m Message) FirstSend(g Ground) FirstSend {
	tried := m.SendNo > 0 || m.Epoch > 1
	switch {
	case g == NoGround:
		return NotSent
	case m.Status >= Sent, !m.DeliveredAt.IsZero(), g == HasToken, g == ByOperator && m.Kind == URL && tried:
		return WasSent
	case !m.NextAt.IsZero():
		return MaybeSent
	}
	return NotSent
}
