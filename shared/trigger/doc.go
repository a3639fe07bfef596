// Package trigger pulls messages from JetStream, posts them to functions and acknowledges
// them. Each route is one durable pull consumer; each message is one POST to
// {base}/events/{function}. It has no state and no SQL: any number of triggers may run.
// Package bus has the connection, the streams and the names of consumers.
//
// # Invariants
//
//   - Routes are independent. One whose stream or consumer cannot be created is retried
//     with delays of at most ten seconds, and Ready and Routes report why it does not run.
//   - A message is acknowledged only after its 2xx, or as a refused event (see below). The
//     server confirms the acknowledgement of a 2xx. If that is lost, the message is delivered
//     again; functions are idempotent.
//   - The number of deliveries has no limit: with one, a message would stay in its stream
//     and never be delivered. 404, 408, 409, 425, 429, 499, 5xx and timeouts are retried with
//     growing delays, not before Retry-After.
//   - 401, 403 and redirects mean that the trigger's settings are wrong. The event is
//     retried.
//   - Any other 4xx refuses the event permanently. The trigger stores the event in
//     DEADLETTERS and then ends its delivery. If DEADLETTERS does not store it, the trigger
//     posts a RefusedType event to the function, which records it in the database.
//   - While a function handles a message, heartbeats extend AckWait, so that no other trigger
//     delivers the message meanwhile.
//   - Every user of NATS may publish wake-ups, so a message of WAKE is always posted as a
//     tick, never as the event in its headers. An event in EVENTS must have the type of its
//     subject, one in ACCEPTED must be an accepted message. Others, and events in structured
//     mode, become dead letters and are not posted.
//   - Only as many messages are pulled as can be delivered at once; a route of ordered
//     batches also pulls the next batch.
//   - Each step of a route has a deadline; waiting for NATS has none. If a route is a minute
//     past its deadline, it hangs, and Alive fails: only a restart resolves that.
//   - Waiting retries count as in flight, which bounds what a failing function can
//     accumulate. A newer wake-up of the same subject replaces a waiting one.
//   - A wake-up that fails after a newer one was delivered is published again. NATS does not
//     redeliver a replaced message, and the call for the newer wake-up may have found nothing
//     to do because the failed call still held the work.
//
// # Batches
//
// A route of ordered batches keeps the order of its stream. By a priority group, NATS gives
// its messages to one trigger (it is pinned), which posts the same batch until the function
// accepts it. After five failures it lets another trigger try. If the function refuses a batch,
// or fails on it with 500 three times, its events are posted one by one, and only those that
// are then refused become dead letters. An event that neither DEADLETTERS nor the function
// stores is acknowledged nevertheless, so that it does not block later events: it stays in its
// stream.
//
// A trigger that is no longer pinned may still be working: its pin may have expired while it
// waited for the function, or the server with the pin has failed. So no batch begins while
// another trigger holds messages. The pinned trigger receives the messages of stopped triggers
// again, and waits until running ones have settled theirs. A trigger that stops, or is no
// longer pinned, returns its messages at once.
//
// Servers before 2.11 have no priority groups: a route of ordered batches does not run
// with them. bus.Features lists which feature needs which server.
package trigger
