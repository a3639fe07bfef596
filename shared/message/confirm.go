package message

import "crypto/subtle"

// Confirmer is a caller that confirms a message.
type Confirmer struct {
	User     string   // name of the caller
	Consumer string   // the consumer for which the caller confirms: User or, if the caller is an admin, any name
	Receives []string // subject patterns that the caller may receive
	Token    string   // the token in the confirmation; the receiver at a URL finds it in the delivery; "" = none
	Admin    bool
}

// Permission is the reason why a caller may confirm a message.
type Permission int8

const (
	NoPermission Permission = iota // the caller may not confirm the message
	IsRecipient                    // the addressed user, or a caller that may receive the subject
	HasToken                       // the confirmation has the token that was in the delivery to the URL
	ByOperator                     // an admin
)

// PermissionFor returns why c may confirm a message to an address, or NoPermission. token is the token in the
// deliveries of the message; "" = none.
func (c Confirmer) PermissionFor(to Address, token string) Permission {
	if c.Consumer == c.User {
		switch {
		case to.Kind == User && to.Name == c.User,
			to.Kind == Subject && coveredBy(c.Receives, to.Name):
			return IsRecipient
		case to.Kind == URL && token != "" && subtle.ConstantTimeCompare([]byte(token), []byte(c.Token)) == 1:
			return HasToken
		}
	}
	if c.Admin {
		return ByOperator
	}
	return NoPermission
}

// FirstSend is whether a message was sent at least once.
type FirstSend int8

const (
	NotSent   FirstSend = iota // no receiver can have the message
	MaybeSent                  // a send is due: it may have happened although no result is stored
	WasSent
)

// FirstSend returns whether the message was sent before a caller with permission p confirms it. Only the
// confirmation of a message that WasSent counts. If an admin confirms, WasSent includes a failed send to a URL: the
// receiver may have the message.
func (m Message) FirstSend(p Permission) FirstSend {
	tried := m.SendNo > 0 || m.Epoch > 1
	switch {
	case p == NoPermission:
		return NotSent
	case m.Status >= Sent, !m.DeliveredAt.IsZero(), p == HasToken, p == ByOperator && m.Kind == URL && tried:
		return WasSent
	case !m.NextAt.IsZero():
		return MaybeSent
	}
	return NotSent
}
