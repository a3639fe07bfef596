// Package bus publishes CloudEvents to NATS JetStream: stream definitions, confirmed
// publishing, wake-ups, schedules, followers of inboxes, and the users of NATS. Package
// trigger posts what is published to functions. This package has no SQL and no rules of tasks.
//
// Postgres is the source of truth. Everything here is a wake-up or a copy of a row, with two
// exceptions. An accepted message is only in ACCEPTED until the function save has saved it. A
// published event is only in EVENTS until the function deliver has recorded its webhooks.
//
// While NATS is unavailable, wake-ups are sent later, Publish returns ErrUnavailable, and tasks
// are still processed by polling. With a nil *Bus it is always so, and no wake-up is sent.
//
// # Streams
//
//	WAKE         wake.*, sched.>  wake-ups of functions, and their schedules
//	EVENTS       evt.>            events for webhooks, and delivery times of messages that are not saved yet
//	MESSAGES     msg.>            reliable messages to subjects
//	USERS        inbox.>          reliable messages to users
//	DEADLETTERS  dlq.>            events that a function refused
//	ACCEPTED     acc.>            messages whose senders were promised that they will be saved
//
// All but WAKE and ACCEPTED deduplicate every message by its Nats-Msg-Id; in WAKE only
// safety ticks have one. After a restart a stream has only the ids of the messages that it
// still stores. So these streams keep acknowledged messages (limits retention), and when full
// they refuse new messages (DiscardNew) instead of dropping old ones. Duplicates outside the
// window are detected by the receiver's inbox.
//
// The function deliver trims three streams, so that they do not become full: every five
// minutes, every minute while a stream has an alert, and within 15 s after one has refused
// a message.
//
//   - EVENTS: recorded events are removed an hour after publication, 15 minutes after
//     it once the stream is half full, and at once when it is three quarters full or has
//     refused an event. A process also trims it whenever it has recorded events of a sixteenth
//     of its size.
//   - MESSAGES: finished messages (confirmed by all expected consumers, or abandoned) are removed
//     after an hour, 15 minutes once the stream is half full and 2 minutes once it is
//     nine tenths full. A message that requires no confirmation also stays until every consumer
//     of the stream has acknowledged it; without consumers until the stream is half full.
//     Unfinished messages stay until the age limit. Each send of a message stores another copy;
//     once the stream is half full, a trim keeps only the newest copy of each.
//   - USERS: each user has a maximum number of messages; a new one evicts the oldest.
//     While more than half of the stream is used, senders above their fair share lose the
//     oldest messages of their largest inboxes. Messages of the last day stay; when the stream
//     is nearly full only those of the last 15 minutes, and if that is not enough only those of
//     the last 30 s. So a sender that floods one inbox or many does not shorten the inboxes of
//     others. Followers report the removal of unread messages (GapError): the last
//     removed sequence number of each user is stored 3 s before the removal, and a
//     follower that reads old messages queries it every 2 s.
//
// TrimMessages reads only headers, of messages that are old enough or, to find copies, of all.
// A call reads for a few seconds; the next one continues where it stopped. Finished messages at
// the beginning of the stream are removed by one purge, others one by one, so an unconfirmed
// message does not keep others in the stream.
//
// WAKE keeps one message per subject, however many wake-ups were not handled yet. A wake-up of
// a queue (wake.queue.*) reaches only the processes that run now. wake.queue.wechat is stored
// in WAKE too, since a function sends the tasks of that queue. notify.callers, which carries
// the name of a changed caller, is not stored.
//
// ACCEPTED stores one message per subject, which ends with the id of the message. It refuses
// another message of the subject, without any time window, until Forget removes the first.
//
// Ensure creates missing streams and changes existing ones to what the settings say, also where
// an operator has changed a limit. It removes sources, mirrors, republishing and subject
// transforms, with a warning. Only added subjects, a higher number of replicas and allowed
// message schedules stay. A field that NATS refuses to change (storage, a size for which there
// is no room) is logged once with a remedy, and the stream is used as it is. A smaller size
// never removes messages from a stream with DiscardNew: it is applied once the messages need at
// most half of it. A lower age limit removes older messages.
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
// Reply subjects begin with _INBOX.<user>, so users cannot read each other's replies.
//
// NATS does not check reply subjects: a request, also one of the JetStream API, and a
// push consumer may name any subject as its reply subject. Therefore
//
//   - a receiver has its own account, in which our subjects do not exist. It imports
//     three subjects: its consumer's state, fetching from it and acknowledging. An
//     operator creates the consumer, whose filter is the grant;
//   - streams do not allow direct gets, and functions may not fetch from consumers or
//     create them: such a reply is stored data, or is empty, and an empty message is a valid
//     request to delete or purge a stream. The trigger reads the headers by which deliver
//     trims streams, and sends them to reply subjects only (headers.go);
//   - all other replies are JSON with fields that no request has. Servers from 2.12 on
//     refuse them as requests, unless their settings say strict: false. With older servers
//     no message is accepted before it is saved.
//
// deliver may purge EVENTS, MESSAGES and USERS, and save may purge the stream of accepted
// messages: that is their work. The trigger may create and change all streams, and read all
// but DEADLETTERS.
//
// NATS does not reply to a denied request. The Bus detects the denial by the asynchronous
// error. Publish then returns ErrRefused for a subject of a stream that is not ours, and
// ErrStreamUnavailable for one of ours, until the permissions are corrected.
//
// # Publishing
//
// There are three outcomes: stored; refused, if repeating does not help; unavailable, if
// it may help. A message that gets no reply is refused only if no stream has its subject.
// ErrUnavailable has a scope: ErrSubjectUnavailable is one subject at its own limit,
// ErrStreamUnavailable one stream that is full, has no leader or does not reply, and any
// other ErrUnavailable the broker. Other subjects and streams need not wait.
//
// # Accepting
//
// Accept returns nil only when the stream has a message for the subject. The server
// returns the same code, 10077, for a subject with a message and for a full stream, so
// Accept looks the message up, and waits while a message is still being replicated. Lookups
// ask the leader: a replica that lags behind would report an accepted message as missing, and
// its sender would send it again as another message.
//
// A subject contains one of 64 slots, a hash of the sender; a shard is a set of slots. Each
// number of shards has durables of its own, which begin at the start of the stream. So each
// durable has seen all earlier messages of its senders, and triggers with different numbers
// of shards may run at once.
//
// # Time
//
// A due time becomes a message schedule (a message that NATS publishes at a given time) of its
// time bucket, published by the process that writes the due time. So no process must stay up
// until then. Publishing a schedule of the same bucket again replaces it. Buckets are a second
// within a minute, ten seconds within an hour, a minute within a day and an hour within 31 days;
// later times are not scheduled. So a subject has at most 2,614 schedules, and WAKE has room for
// several times that: it never evicts a schedule or a wake-up.
//
// The clocks of NATS, the functions and Postgres may differ. After an early wake-up nothing
// is due yet, and the schedule has been removed: the woken function calls WakeAgainAt, which
// always publishes. For the same reason, and because a schedule may be lost, a process
// publishes a schedule again after half of the time left, and after five minutes at most.
//
// Wake-ups that could not be sent are sent after the next connect. If their process has ended
// by then, they are lost. So on each connect the trigger wakes every function that has a safety
// tick. Safety ticks cover all other losses. Every trigger publishes every tick under the same
// message id, so the stream stores one. Ticks are not stored in advance, since they could be
// evicted, and would be useless without a trigger to deliver them.
package bus
