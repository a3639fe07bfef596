// Package bus is the client of NATS JetStream. It creates the streams, publishes CloudEvents, wakes
// functions now or at a given time, reads the messages to a user, and lists the users of NATS. Package
// trigger posts the messages of WAKE, EVENTS and ACCEPTED to functions. Package bus contains no SQL and no
// rules of tasks.
//
// Postgres is the source of truth: a message in NATS is a wake-up, a notice or a copy of a row. There are
// three exceptions. An accepted message is only in ACCEPTED until the function save has saved it. A
// published event is only in EVENTS until the function deliver has recorded its webhooks. An event that a
// function refused may be only in DEADLETTERS.
//
// While NATS is unavailable, sender apps that poll still get tasks, wake-ups are sent later, and Publish
// returns ErrUnavailable. A nil *Bus behaves in the same way, but never sends a wake-up.
//
// # Streams
//
//	WAKE         wake.*, sched.>  wake-ups of functions, and their schedules
//	EVENTS       evt.>            events for webhooks, and delivery times of messages that are not saved yet
//	MESSAGES     msg.>            reliable messages to subjects
//	USERS        inbox.>          messages to users, and late acknowledgements to users (of messages that were
//	                              accepted, and then saved or rejected)
//	DEADLETTERS  dlq.>            events that a function refused
//	ACCEPTED     acc.>            messages that were acknowledged to their senders before they are saved in Postgres
//
// WAKE keeps one message per subject, the newest. Wake-ups of queues (wake.queue.*) are not stored
// and reach only the processes that run now, except wake.queue.wechat: the function wechat sends the
// tasks of that queue, so WAKE stores its wake-up. No stream stores notify.callers, which carries the
// name of a changed caller.
//
// ACCEPTED stores one message per subject. The subject ends with the id of the message. ACCEPTED
// refuses a second message with the same subject, however late it comes, until Forget or RemoveStored
// removes the first message.
//
// The other streams deduplicate messages by Nats-Msg-Id, within a time window. After a restart NATS
// knows only the ids of messages that are still stored. So these streams keep acknowledged messages
// (limits retention). A full stream, except WAKE, refuses new messages (DiscardNew) instead of removing
// old messages. In USERS, the messages with the subject of one user are the user's inbox. A message to a full
// inbox replaces the oldest message of this inbox. Receivers detect duplicates outside of the time window by
// themselves, for example with the package shared/inbox.
//
// The function deliver calls TrimEvents, TrimMessages and TrimUsers, so that EVENTS, MESSAGES and
// USERS do not become full: every five minutes, every minute while a stream has an alert, and every
// 15 s while a stream refuses messages. Each process of deliver also calls TrimEvents whenever it
// has recorded another sixteenth of the size of EVENTS.
//
// Ensure creates missing streams and changes the fields in streamFields of existing streams to match
// the settings, also where an operator has changed a limit. It removes sources, mirrors, republishing and
// subject transforms, with a warning. Of an operator's changes to these fields, only added subjects, more
// replicas and allowed message schedules stay. If NATS refuses to change a field (the storage, or a size for
// which there is no room), Ensure reports the field with a remedy, and the stream is used as it is. A smaller
// size never removes messages from a stream with DiscardNew: Ensure applies the smaller size once the
// messages need at most half of it. A lower age limit removes older messages.
//
// Streams are independent. If a stream cannot be created, only publishing to it and the trigger's
// deliveries from it stop.
//
// # Users
//
// If NATS has users, each component has its own user. Users lists the permissions, and
// ServerConfig turns them into a server configuration. Only the trigger creates and
// changes streams, because the creator of a stream also chooses its sources and republishing.
// For other users a missing stream is unavailable until the trigger has created it. The trigger notices
// within 10 s that a stream is missing. Reply subjects begin with _INBOX.<user>, so users cannot read each
// other's replies.
//
// NATS does not check where it publishes a reply: a request, also to the JetStream API, may name any reply
// subject, and a push consumer may name any subject for its messages. Therefore
//
//   - a receiver (a service that reads messages to subjects) has its own account, in which our
//     subjects do not exist. The account imports three subjects: reading the state of the
//     receiver's consumer, fetching from the consumer, and acknowledging. An operator creates the
//     consumer. Its filter says which subjects the receiver may read;
//   - streams do not allow direct gets, and functions may neither fetch from consumers nor
//     create them. The reply to a fetch is stored data, or is empty, and an empty message is a
//     valid request to delete or purge a stream. The trigger reads the headers by which deliver
//     trims MESSAGES and USERS, and sends the headers to reply subjects only (headers.go);
//   - all other replies are JSON with fields that no request has. Servers from 2.12 on
//     refuse such JSON as a request, unless the settings of the server say strict: false. With
//     older servers no message is accepted before it is saved.
//
// It is the work of deliver to purge EVENTS, MESSAGES and USERS, and of save to purge the stream of accepted
// messages, so they may do that. The trigger may create and change all streams, and read all
// streams except DEADLETTERS.
//
// NATS does not reply to a denied request. The Bus detects the denial by the asynchronous
// error. Then Publish returns ErrRefused if no stream of ours has the subject. Otherwise Publish
// returns ErrStreamUnavailable until the permissions are corrected.
//
// # Publishing
//
// There are three outcomes: stored; refused, if publishing again does not help; unavailable, if
// publishing again may help. A message that gets no reply is refused only if no stream has its
// subject and the subject is not one of ours. The scope of an ErrUnavailable is one subject, one stream or
// the broker. ErrSubjectUnavailable means one subject, which is at its own limit. ErrStreamUnavailable means
// one stream, which, for example, is full, has no leader or is missing. Any other ErrUnavailable means the
// broker. Messages outside of the scope need not wait.
//
// # Accepting
//
// Accept returns nil only when the stream has a message for the subject. The server
// returns code 10077 both for a subject with a message and for a full stream, so
// Accept looks the message up, and waits while a message is still being replicated. Only the leader
// answers look-ups. A replica that lags behind would report an accepted message as missing, and
// then the sender would send the message again as another message.
//
// Each subject of ACCEPTED contains a slot: a number from 0 to 63, the hash of the sender. A shard is
// a set of slots. Each number of shards has its own durables, such as save-1-of-4, and they begin at the start
// of the stream. So each durable has seen all earlier messages of its senders, and triggers with different
// numbers of shards may run at once.
//
// # Time
//
// The process that writes a due time also publishes a message schedule (a message that NATS
// publishes at a given time) for the time bucket of the due time. So that process may end before the
// due time. A schedule replaces an earlier schedule of the same subject and bucket. A
// bucket is a second long if the due time is within a minute, ten seconds within an hour, a minute
// within a day and an hour within 31 days. Later due times are not scheduled. So a subject has at
// most 2,614 schedules. WAKE has room for those of all its subjects, so it never evicts a schedule or
// a wake-up to make room.
//
// The clocks of NATS, the functions and Postgres may differ. After an early wake-up nothing
// is due yet, and the schedule has been removed. So the woken function calls WakeAgainAt, which
// publishes the schedule again. For the same reason, and because a schedule may be lost, a repeated
// WakeAt publishes the schedule again after half of the time until the wake-up, or after five minutes if
// that is sooner.
//
// Wake-ups that could not be sent, or that WAKE did not store, are sent again later, unless their process has
// ended meanwhile. For that case the trigger, on each connect, wakes every function that has a safety tick. Safety
// ticks cover all other losses.
package bus
