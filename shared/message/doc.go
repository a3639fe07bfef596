// Package message has the domain rules of reliable messages: their addresses and ids, and what a send, a confirmation
// or an operator may change. It is pure: it uses no clock, no database and no network, and imports the standard library
// only.
//
// # States
//
//	          accepted                       confirmed by all
//	sending -----------> sent ---------------------------------> received
//	   |  |               |                                         ^  ^
//	   |  +---------------|---- confirmed before the send settles --+  |
//	   |                  |                                            |
//	   +-- abandoned -----+-------> abandoned ------ confirmed late ---+
//	       (operator)                  |
//	   ^------------------------------- redriven (operator)
//
// A redrive does not change the status: an abandoned message is in state sending or sent again, as it was before.
//
// A message is stuck if it is not final and no send is left: in state sending, no stream and no receiver accepted it; in
// state sent, it was not confirmed.
//
// # Invariants
//
//   - The status only moves forward: sending, sent, received.
//   - A confirmation counts only from a receiver of the message or an admin (Confirmer), and only after the message was
//     sent (FirstSend), so ids need not be secret. The token in a message to a URL proves that it was sent, so a
//     confirmation with it may arrive before the result of the send is stored. A confirmation may also arrive after the
//     message was abandoned. Both make it received.
//   - Remaining + SendNo = MaxSends. A send counts if it was Accepted or Refused. An Unavailable send changes no number,
//     so the next one has the same MsgID: if the stream has stored the first, it drops the second.
//   - Two sends that count never have the same MsgID, also after a redrive: a message that is sent again on purpose is
//     not dropped as a duplicate.
//   - A message that requires confirmation is finished when all expected consumers have confirmed it, any other one
//     when its stream has stored it, or after the 2xx of its URL. By default only messages to subjects require it.
package message
