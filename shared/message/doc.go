// Package message is the domain of Sendonce's reliable messages:
// where one may go, which id it has, and what a send, a confirmation or an
// operator may change. It is pure: it knows no clock, no database, no broker and
// no wire, and imports the standard library only.
//
// # States
//
//	          taken                        confirmed by all
//	sending -----------> sent ---------------------------------> received
//	   |  |               |                                         ^  ^
//	   |  +---------------|---- confirmed before the send settles --+  |
//	   |                  |                                            |
//	   +-- abandoned by --+-------> abandoned ------ confirmed late ---+
//	       hand                        |
//	   ^------------------------------- redriven by hand
//
// A message is stuck when it is not final and no send is left: as sending, the
// broker never had it; as sent, the receiver did not confirm.
//
// # Invariants
//
//   - The status only moves forward: sending, sent, received.
//   - A confirmation counts only from whom the message is for (Confirmer), and only
//     once it was sent (FirstSend): nothing depends on ids being secret. One of a
//     message to a URL may come before its send settles, as its token proves the
//     send. One may also come after a message was abandoned. Both make it received.
//   - Remaining + SendNo = MaxSends. A send counts when the broker or the receiver
//     had a word in it; one that met nobody (Away) uses nothing and changes no
//     number, so the repeat has the same MsgID and is recognised.
//   - Two sends that count never share a MsgID, not even over a redrive: what is
//     sent again on purpose is not swallowed as a duplicate.
//   - The end depends on the address: a subject's message ends with the
//     confirmations, or once it is sent when none are wanted; a URL's with the 2xx
//     of the receiver, or with the confirmations when these are wanted; a user's
//     once it is in the inbox.
package message
