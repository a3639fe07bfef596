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
// A message is stuck if it is not final and no send is left: in state sending, the broker did not accept it; in state
// sent, the receiver did not confirm it.
//
// # Invariants
//
//   - The status only moves forward: sending, sent, received.
//   - A confirmation counts only from a receiver of the message (Confirmer), and only after the message was sent
//     (FirstSend): ids need not be secret. The confirmation of a message to a URL may arrive before the result of the
//     send is stored, as its token proves that it was sent, and any confirmation may arrive after the message was
//     abandoned. Both make it received.
//   - Remaining + SendNo = MaxSends. A send counts if the broker or the receiver responded. A send without a response
//     (Unavailable) changes no number, so the next one has the same MsgID and is deduplicated.
//   - Two sends that count never have the same MsgID, also after a redrive: a message that is sent again on purpose is
//     not dropped as a duplicate.
//   - When a message is finished depends on its address: for a subject, when it is confirmed, or sent if no
//     confirmation is required; for a URL, after the receiver's 2xx, or when it is confirmed if that is required; for
//     a user, when it is in the inbox.
package message
