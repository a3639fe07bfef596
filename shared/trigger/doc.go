// Package trigger pulls messages from JetStream, posts them to functions and acknowledges
// them. Each route is one durable pull consumer; each message is one POST to
// {base}/events/{function}. It has no state and no SQL: any number of triggers may run.
// Package bus has the connection, the streams and the names of consumers; this package
// uses the client of NATS directly for its consumers alone.
//
// # Invariants
//
//   - Routes are independent. One whose stream or consumer cannot be created is set up
//     again at most ten seconds apart and reports why it does not run (Ready, Routes).
//   - A message is acknowledged only after its 2xx, and the acknowledgement is confirmed.
//     A lost one means another delivery; functions are idempotent.
//   - Deliveries are unlimited. 404, 408, 409, 425, 429, 5xx and timeouts are retried with
//     growing delays, not before Retry-After. With a limit, a message would stay in its
//     stream unseen.
//   - With any other 4xx the function refuses the event permanently: it is stored in
//     DEADLETTERS first and terminated then. If DEADLETTERS cannot store it, the trigger
//     posts a RefusedType event to the function, which records it in the database.
//   - 401, 403 and redirects mean that the trigger's settings are wrong. The event is
//     retried.
//   - While a function works, heartbeats extend AckWait: a slow function receives a message
//     once.
//   - Every user of NATS may publish wake-ups, so a message of WAKE is always posted as a
//     tick, never as the event in its headers. An event in EVENTS must have the type of its
//     subject, one in ACCEPTED must be an accepted message. Others, and events in structured
//     mode, become dead letters and are not posted.
//   - Only as many messages are pulled as can be delivered at once.
//   - Each step of a route has a deadline. Exceeding it is a hang that only a restart
//     resolves; waiting for NATS has no deadline.
//   - Waiting retries count as in flight, which bounds what a failing function can
//     accumulate. A newer wake-up of the same subject replaces a waiting one.
//   - A wake-up that fails after a newer one was delivered is published again: NATS does
//     not redeliver what was replaced, and the newer one may have found no work left.
//
// # Batches
//
// A route of ordered batches keeps the order of its stream. By a priority group, NATS gives
// its messages to one trigger, which posts the same batch until the function accepts it. If
// the function refuses a batch, its events are posted one by one, and only those refused
// alone become dead letters. An event that neither DEADLETTERS nor the function stores is
// acknowledged nevertheless, so that it does not block later events: the stream keeps it.
//
// Another trigger may still be working although one is active: its pin may have expired
// while it waited for the function, or the server with the pin has failed. So no batch
// begins while another trigger holds messages. The active trigger receives the messages of
// stopped triggers again, and waits until running ones have settled theirs. A trigger that
// stops, or is no longer the active one, returns its messages at once.
//
// Servers before 2.11 have no priority groups: a route of ordered batches does not run
// with them. bus.Features lists which feature needs which server.
package trigger
