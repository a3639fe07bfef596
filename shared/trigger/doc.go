// Package trigger pulls messages from JetStream, posts them to functions and acknowledges
// them. Each route is one durable pull consumer. Each message, or each batch of messages, is
// one POST to {base}/events/{function}. A trigger has no state and no SQL: any number may run.
// Package bus has the connection, the streams and the names of consumers.
//
// # Invariants
//
//   - Routes are independent. If the stream or consumer of a route cannot be created, the trigger
//     tries again after at most ten seconds, and Ready and Routes report the reason.
//   - A message is acknowledged only after the function returned 2xx or the event was refused (see below).
//     The response must have the header FunctionHeader: after other responses, such as those of a proxy,
//     the event is retried. After a 2xx the trigger waits until NATS confirms the acknowledgement. If
//     the acknowledgement is lost, the message is delivered again; functions are idempotent.
//   - The number of deliveries has no limit. With a limit, a message could stay in its stream
//     and never be delivered again. After 404, 408, 409, 425, 429, 499, 5xx or no response, the event is
//     retried with growing delays, and not before Retry-After.
//   - 401, 403 and redirects mean that the trigger's settings are wrong. The event is retried,
//     at intervals of up to a minute, and not before Retry-After.
//   - Any other 4xx refuses the event permanently. The trigger stores the event in
//     DEADLETTERS and then ends its delivery. If DEADLETTERS does not store the event, the trigger
//     posts a RefusedType event to the function, which records the refused event in the database.
//   - While a function handles a message, heartbeats extend AckWait, so that no other trigger
//     delivers the message meanwhile.
//   - Every user of NATS may publish wake-ups, so a message of WAKE is always posted as a
//     tick, never as the event in its headers. In other streams, a message without ce-specversion is
//     posted as an event of type bus.UnreadableType. An event in EVENTS must have the type of its subject, and
//     an event in ACCEPTED must be an accepted message. Other events, and events with the content type of
//     structured mode, become dead letters and are not posted.
//   - A route pulls only as many messages as it can handle at the same time; a route of ordered
//     batches also pulls the next batch.
//   - Each step of a route has a deadline, except waiting for a connection to NATS. A route that is more
//     than a minute past its deadline is stuck: Alive fails, because only a restart resolves that.
//   - A message that waits for its retry counts towards the limit Route.InFlight, so a failing function cannot
//     have more waiting retries than this limit. In WAKE, a newer wake-up replaces a waiting wake-up of the
//     same subject.
//   - WAKE keeps only the newest wake-up of a subject, so NATS does not redeliver an older one. If the call for
//     the older one fails after the newer one was delivered, the trigger publishes a new wake-up: the call for
//     the newer one may have found nothing to do, because the older call still had the work claimed.
//
// # Batches
//
// A route of ordered batches keeps the order of its stream. By means of a priority group, NATS delivers all
// messages to one trigger at a time, the pinned trigger. This trigger repeats the POST of a batch until each event of the
// batch is acknowledged or a dead letter, and only then posts the next batch. After five failed tries it lets another trigger
// try. If the function refuses a batch, or fails on it with 500 in the third try or later, the trigger posts
// the events one by one. Only an event that is refused when posted alone becomes a dead letter. If DEADLETTERS
// does not store the dead letter, and the function refuses to record it, the event is acknowledged
// nevertheless, so that it does not block later events. The event stays in its stream.
//
// A trigger that is no longer pinned may still be working: the pin expired while the trigger waited
// for the function, or the NATS server that kept the pin failed. So no batch begins while another trigger
// holds unsettled messages. The pinned trigger receives the messages of stopped triggers again, and waits
// until running triggers have settled their messages. A trigger that stops, or finds that it is no longer
// pinned, waits for its POST to end and returns its unsettled messages at once.
//
// A route of ordered batches does not run with servers before 2.11, which have no priority groups.
package trigger
