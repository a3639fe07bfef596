// Package outbox lets a service send a message if and only if its own transaction commits. It needs one table
// (DDL) in the service's own database.
//
// # Promises
//
//   - A message of a committed transaction reaches the Sendonce service, however often either side is killed. A
//     message of a rolled back transaction never reaches the service. If the database has a synchronous standby, a message is
//     sent only after the standby has its transaction.
//   - Sendonce accepts a message once: the row's id is the client_msg_id, so a POST that is repeated after a
//     lost response, or by another forwarder, is a replay.
//   - A forwarder deletes a row only after a 200 or 202 of the service itself, not of a proxy, that names its id. Until then the row stays,
//     and last_error has the reason of the last failure.
//   - A message that the service refuses does not block other messages. The refused message stays for an operator, in
//     the list of Refused.
//   - A 429 that names a field means that this sender has sent too many messages to one user: only this message
//     is sent later. A 429 without fields is about the caller: all messages wait, as after a 503 or with wrong
//     credentials.
//   - Any number of forwarders may run. Each locks the rows that it sends. If a forwarder is killed or its host fails,
//     Postgres unlocks its rows within 30 seconds.
//
// # What cannot be promised
//
//   - Order: messages are sent concurrently.
//   - That a fail-over keeps a transaction if somebody cancels the forwarder's own wait for the standby with
//     pg_cancel_backend: Postgres reports success then.
//   - That the receiver processes a message once: package inbox does that on its side.
//   - Deduplication across callers: Sendonce identifies a message by its caller, from and client_msg_id. All
//     forwarders of one table must use the same caller.
//
// # Use
//
// Run DDL in a migration. Call Put in the business transactions. Either run one Forwarder in each process (Run), or
// call Drain on a schedule. With Run, call Wake after a commit to send at once instead of at the next poll.
package outbox
