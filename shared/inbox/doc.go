// Package inbox lets a service process a message once, although the message may be delivered several times. It
// needs one table (DDL) in the service's own database.
//
// # Promises
//
//   - The effect of a message on that database happens once per consumer: the effect and the row that
//     records the message are committed together.
//   - A message is a duplicate only if its row exists, never because of an error.
//   - A duplicate waits while the first delivery of the message is being processed. The duplicate is processed only
//     if the transaction of the first delivery is rolled back.
//   - A duplicate is confirmed too: the first confirmation may have been lost. If the database has a synchronous standby,
//     the duplicate is confirmed only after the standby has the first commit.
//
// # What cannot be promised
//
//   - Effects outside that database (a payment, a mail) are not undone by a rollback and may happen again.
//     Record them in the same transaction and perform them afterwards; package outbox does that.
//   - If somebody cancels the wait of a commit for the synchronous standby, as pg_cancel_backend does, Postgres reports
//     success. So the message is confirmed, and a fail-over may then lose its effect.
//   - A message is processed again if it is delivered after Prune has deleted its row. So Prune has a parameter for
//     how late a message may be sent again.
//   - Messages arrive in no particular order.
//   - The sender of a request is not checked: put the service's own authentication before Receiver.
//
// # Use
//
// Run DDL in a migration. A service that is called over HTTP mounts a Receiver. A service with its own loop calls
// Receiver.Receive for each message and acknowledges the message after a nil error. A service with its own
// transactions calls Once. Call Prune regularly.
//
// The caller that confirms must be a receiver of the message. For messages to subjects, an administrator grants
// the subjects to the caller (receives). A message to a URL with confirm: true has a token in its attribute
// confirmtoken, which Confirmer sends.
//
// A service that reads messages from NATS has its own user and account there. On the stream MESSAGES, an operator
// creates a durable consumer with the name of the user:
//
//	js, err := jetstream.NewWithDomain(nc, "sendonce")
//	consumer, err := js.Consumer(ctx, "MESSAGES", "points")
//
// The account may only fetch from that consumer and acknowledge.
//
// A message whose effect never succeeds is redelivered until its sends are used up. After that the message is in the
// sender's list of stuck messages. To avoid this, record the failure in the effect and return nil.
package inbox
