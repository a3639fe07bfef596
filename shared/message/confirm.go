package message

import "crypto/subtle"

// Confirmer is who confirms a message, and what may prove that the message is for
// it.
type Confirmer struct {
	User     string   // its own name
	Consumer string   // for whom it confirms: itself, or whom an admin names
	Receives []string // patterns of the subjects that it was granted
	Token    string   // of a delivery to a URL, "" = none
	Admin    bool
}

// Ground is why a confirmation may count.
type Ground int8

// The grounds of a confirmation.
const (
	NoGround    Ground = iota // the message is for somebody else
	IsAddressee               // it is the user of the message, or was granted its subject
	HasToken                  // it has what only a delivery to the URL carries
	ByHand                    // it is an admin
)

// GroundOf decides whether c may confirm a message to an address. token is what
// the deliveries of this message carry; "" = none.
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
		return ByHand
	}
	return NoGround
}

// FirstSend is what is known of the first send of a message.
type FirstSend int8

// What may be known of a first send.
const (
	NotSent   FirstSend = iota // nobody has the message, and it is not about to be sent
	MaybeSent                  // it is due: somebody may have it, and that is not recorded yet
	WasSent
)

// FirstSend tells whether somebody can have the message, so that a confirmation on
// this ground may count.
func (m Message) FirstSend(g Ground) FirstSend {
	tried := m.SendNo > 0 || m.Epoch > 1
	switch {
	case g == NoGround:
		return NotSent
	case m.Status >= Sent, !m.DeliveredAt.IsZero(), g == HasToken, g == ByHand && m.Kind == URL && tried:
		return WasSent
	case !m.NextAt.IsZero():
		return MaybeSent
	}
	return NotSent
}
