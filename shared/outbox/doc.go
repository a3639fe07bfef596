// Package outbox lets a service send a message exactly when its own
// transaction commits. It needs one table (DDL) in the service's own database.
//
// # Promises
//
//   - A message of a committed transaction reaches the Sendonce service, however
//     often either side is killed; one of a rolled back transaction never does.
//   - Sendonce has it once: the row's id is its client_msg_id, so a POST that is
//     repeated after a lost answer, or by another forwarder, is a replay.
//   - A row is deleted only after the service's own answer, 200 or 202. What else
//     happens keeps it, with the reason in last_error.
//   - A message that the service refuses holds up no other one. It waits for a
//     person, who finds it with Refused.
//   - Any number of forwarders may run. They share by row locks, held while they
//     POST, so there is no lease to expire: a killed forwarder's rows are free as
//     soon as Postgres sees it gone, at the latest after 30 seconds.
//
// # What cannot be promised
//
//   - Order: messages are sent side by side.
//   - That the receiver acts once: package inbox does that at its side.
//   - Sameness across callers: Sendonce knows a message by its caller, from and
//     client_msg_id. All forwarders of one table log in as the same caller.
//
// # Use
//
// Run DDL in a migration. Put messages in the business's transactions, and run
// one Forwarder in each process (Run) or from a schedule (Drain). Wake after a
// commit saves the wait for the next look at the table.
package outbox
