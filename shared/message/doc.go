// Package message has the domain rules of reliable messages: their addresses and ids, and how a send, a confirmation or an
// operator changes a message. It also has the rules for the deliveries of webhooks. It uses no clock, no database and no
// network, and imports only the standard library.
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
// If a message to a URL requires no confirmation, the 2xx makes it received at once.
//
// A redrive does not change the status: an abandoned message returns to the state sending or sent that it had before.
//
// A message is stuck if it is not final and no send is left. In state sending, no stream and no receiver accepted it; in
// state sent, not all expected consumers have confirmed it.
//
// # Invariants
//
//   - The status only moves forward: sending, sent, received.
//   - A confirmation counts only from a receiver of the message or an admin (Confirmer), and only after the message was
//     sent (FirstSend), so ids need not be secret. The token in a message to a URL proves that the message was sent, so a
//     confirmation with the token counts even before the result of the send is stored. A confirmation also counts
//     after the message was abandoned.
//   - Remaining + SendNo = MaxSends. A send counts if it was Accepted or Refused. An Unavailable send changes no number,
//     so the next send has the same MsgID: if the stream has stored the earlier send, it drops the next one, within its
//     deduplication window.
//   - Two sends that count never have the same MsgID, also after a redrive: a message that is sent again on purpose is
//     not dropped as a duplicate.
//   - A message that requires confirmation is finished when all expected consumers have confirmed it. Any other message
//     is finished when its stream has stored it, or after the 2xx of its URL. By default only messages to subjects
//     require confirmation.
package message
