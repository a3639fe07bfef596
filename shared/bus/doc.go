// Package bus publishes CloudEvents to NATS JetStream: stream definitions, confirmed
// publishing, wake-ups, schedules, followers of inboxes, and the users of NATS. Package
// trigger posts what is published to functions. It knows neither tasks nor SQL.
//
// Postgres is the source of truth. Everything here is a wake-up or a copy of a row, with two
// exceptions: accepted messages that are not saved yet are only in ACCEPTED, and only EVENTS
// has the information that the webhooks of events that are not recorded yet are due. While
// NATS is unavailable, wake-ups are kept for later, Publish returns ErrUnavailable, and tasks
// are still processed by polling. A nil *Bus behaves like that permanently.
//
// # Streams
//
//	WAKE         wake.*, sched.>  wake-ups of functions, and their schedules
//	EVENTS       evt.>            results of tasks, and deliveries of messages that are not saved yet
//	MESSAGES     msg.>            reliable messages to subjects
//	USERS        inbox.>          reliable messages to users
//	DEADLETTERS  dlq.>            events that a function refused
//	ACCEPTED     acc.>            messages whose senders were promised that they will be saved
//
// All but WAKE and ACCEPTED deduplicate by Nats-Msg-Id. After a restart a stream knows
// only the ids of messages that it still has. So the streams keep acknowledged messages
// (limits retention) and refuse new ones when full (DiscardNew) instead of dropping old
// ones. Duplicates outside the window are detected by the receiver's inbox.
//
// A full stream must be emptied, so the function deliver trims three of them every five
// minutes, and within 15 s after one has refused a message:
//
//   - EVENTS: recorded events are removed an hour after publication, 15 minutes after
//     it once the stream is half full, and at once when it is three quarters full or has
//     refused an event. It is also trimmed whenever a sixteenth of it was filled.
//   - MESSAGES: finished messages (confirmed by all expected consumers, or given up) are removed
//     after an hour, 15 minutes once the stream is half full and 2 minutes once it is
//     nine tenths full. A message without confirmation also stays until every consumer
//     of the stream has acknowledged it; without consumers until the stream is half full.
//     Unfinished messages stay until the age limit; each send is another copy. Once the
//     stream is half full, a trim keeps only the newest copy that it has read.
//   - USERS: each user has a maximum number of messages; a new one evicts the oldest.
//     While more than half of the stream is used, senders above their fair share lose the
//     oldest messages of their largest inboxes, but none of the last day; when nearly
//     full none of the last 15 minutes, and if that is not enough none of the last 30 s.
//     So neither one flooded inbox nor a sender that floods many shortens the inboxes of
//     others. Followers report the removal of unread messages (GapError): the last
//     removed sequence number of each user is stored 3 s before the removal, and a
//     follower that reads old messages queries it every 2 s.
//
// TrimMessages reads only the headers of old enough messages, for a few seconds per
// call, and continues where it stopped. Finished messages at the beginning of the stream
// are removed by one purge, others one by one, so an unconfirmed message does not keep
// others in the stream.
//
// WAKE keeps one message per subject, however many wake-ups were not handled yet.
// wake.queue.* reaches the processes that run now; only wake.queue.wechat is stored
// too, since a function sends the tasks of that queue. notify.callers, which carries the
// name of a changed caller, is not stored.
//
// ACCEPTED stores one message per subject, which is the id. It refuses another message of the
// subject, without any time window, until Forget removes the first.
//
// Ensure creates missing streams and updates existing ones to the settings, including
// limits that an operator has set. It removes sources, mirrors, republishing and subject
// transforms, with a warning. Only added subjects and a higher number of replicas stay.
// A field that NATS refuses to change (storage, a size without room) is logged once with a
// remedy, and the stream is used as it is. A smaller size never removes messages from a
// stream that refuses when full; it is applied once the stream is at most half of it.
// A lower age removes older messages.
//
// Streams are independent. One that cannot be created stops only its routes and the
// publishing to it.
//
// # Users
//
// If NATS has users, each component is one of them. Users lists their permissions, and
// ServerConfig turns them into a server configuration. Only the trigger creates and
// changes streams, because their creator also chooses sources and republishing. For
// others a missing stream is unavailable until the trigger has created it, within 10 s.
// Reply subjects begin with the user's name, so users cannot read each other's replies.
//
// NATS does not check reply subjects: a request, also one of the JetStream API, and a
// push consumer may name any subject as its reply subject. Therefore
//
//   - a receiver has its own account, in which our subjects do not exist. It imports
//     three subjects: its consumer's state, fetching from it and acknowledging. An
//     operator creates the consumer, whose filter is the grant;
//   - streams do not allow direct gets, and functions do not fetch from consumers or
//     create them: such replies are stored data, or empty, which is a valid request to
//     delete or purge a stream. The trigger reads the headers by which deliver trims
//     streams, and sends them to reply subjects only (headers.go);
//   - the other replies are JSON with fields that no request has. Servers from 2.12 on
//     refuse them, unless their settings say strict: false. With older ones nothing is
//     accepted before it is saved.
//
// deliver may purge EVENTS, MESSAGES and USERS, and save may purge the stream of accepted
// messages: that is their work. The trigger may create, change and read all streams.
//
// NATS does not reply to a denied request. The Bus detects the denial by the asynchronous
// error: another stream's subject is refused, one of ours is unavailable until the
// permissions are corrected.
//
// # Publishing
//
// There are three outcomes: stored; refused, if repeating does not help; unavailable, if
// it may help. A message without a reply is refused only if no stream has its subject.
// ErrUnavailable has a scope: ErrSubjectUnavailable is one subject at its own limit,
// ErrStreamUnavailable one stream that is full, has no leader or does not reply, and any
// other ErrUnavailable the broker. Other subjects and streams need not wait.
//
// # Accepting
//
// Accept returns nil only when the stream has a message for the subject. The server
// returns the same code, 10077, for a subject with a message and for a full stream, so
// Accept looks the message up, from the leader, and waits while a message is still being
// replicated. "Never accepted" must be certain: the sender then sends another message.
//
// Subjects have 64 slots by sender, and a shard is a set of slots. Another number of
// shards uses other durables, which begin at the start of the stream: each has seen all
// earlier messages of a sender, so two numbers of shards may run at once.
//
// # Time
//
// A due time becomes one message schedule per time bucket, published by the process
// that writes the due time. NATS fires it, so no process of ours must stay awake. Publishing the
// same bucket again replaces it. Buckets are a second within a minute, ten seconds within an
// hour, a minute within a day and an hour within 31 days; later times are not scheduled.
// So a subject has at most 2,614 schedules, and WAKE has room for several times that: it
// never evicts a schedule or a wake-up.
//
// The clocks of NATS, the functions and Postgres may differ. After an early wake-up nothing
// is due yet, and the schedule has been removed: the woken function calls WakeAgainAt, which
// always publishes. For the same reason, and because a schedule may be lost, a process
// relies on a schedule for half of the time left, and five minutes at most.
//
// Wake-ups that could not be sent are sent after the next connect. If their process has ended
// by then, they are lost: so the trigger wakes every function with a safety tick on each connect.
// Safety ticks cover all other losses. Every trigger publishes every tick under the same
// message id, so one is stored. Ticks are not stored in advance, where they could be
// evicted, and without a trigger nothing would deliver them.
package bus
