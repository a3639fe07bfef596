// Package inbox lets a service act once on a message that may arrive many
// times. It needs one table (DDL) in the service's own database.
//
// # Promises
//
//   - The effect of a message on that database happens once per consumer: the
//     row that says "seen" and the effect are one commit.
//   - Only a row that is there makes a message a duplicate. An error never does.
//   - A duplicate that arrives while the first is under way waits for its end,
//     and acts itself when the first was rolled back.
//   - A duplicate is confirmed like the first: its sender asks again because it
//     knows of no confirmation.
//
// # What cannot be promised
//
//   - Effects outside that database (a payment, a mail) are not undone by a
//     rollback and may happen again. Write down that they are wanted, in the same
//     transaction, and carry them out from there; package outbox does so.
//   - A message that comes back after Prune forgot it is new again. Nobody else
//     can know how late an operator resends, so Prune asks for it.
//   - Messages arrive in no order.
//   - Who sent a request is not checked here: put the service's own
//     authentication before Receiver.
//
// # Use
//
// Run DDL in a migration. A service that is called over HTTP mounts a Receiver;
// one with its own loop calls Receiver.Receive for each message and acknowledges
// when that gave no error; one with its own transactions calls Once. Call Prune
// now and then.
//
// The caller that confirms must be one that the message is for: for messages to
// subjects an administrator grants them to it (receives). A message to a URL that
// asks for a call (confirm: true) carries a token, the attribute confirmtoken,
// which goes into the body of the call, as api.Client.ConfirmDelivery does.
//
// One that takes messages from NATS has a user and an account of its own there, and
// a durable consumer of its name on the stream MESSAGES, which an operator makes:
//
//	js, err := jetstream.NewWithDomain(nc, "sendonce")
//	consumer, err := js.Consumer(ctx, "MESSAGES", "points")
//
// It may fetch from that consumer and acknowledge, and nothing else.
//
// An effect that can never succeed is redelivered until its sends are used up,
// and then stands in the sender's list of stuck messages. When that is not
// wanted, let the effect record the failure and return nil.
package inbox
