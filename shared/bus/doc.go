// Package bus is CloudEvents on NATS JetStream: the streams as data, publishing
// with confirmation, wake-ups and schedules, and the trigger that posts events to
// functions. It knows neither tasks nor SQL.
//
// Rows are the truth and everything here is a hint or a copy of one, except what
// is accepted and not saved yet: that is in ACCEPTED alone. With NATS
// away wake-ups wait for it, publishing answers ErrUnavailable, and the pollers keep the
// main job going; a nil *Bus is that state for ever.
//
// # Streams
//
//	WAKE         wake.*, sched.>  which function has something to do, and when it will
//	EVENTS       evt.>            what became of tasks; and when messages were delivered before they were saved
//	MESSAGES     msg.>            reliable messages to subjects
//	USERS        inbox.>          reliable messages to users
//	DEADLETTERS  dlq.>            events that a function refused
//	ACCEPTED     acc.>            messages whose senders were told that they will be saved
//
// All but WAKE and ACCEPTED deduplicate by Nats-Msg-Id. A stream forgets the ids of messages
// that are gone, when it restarts; so they keep messages after their
// acknowledgement (limits retention) and refuse new ones when they are full
// (DiscardNew) instead of dropping old ones. Where ids are not enough, after
// the window of a stream, the receiver's inbox decides.
//
// A stream that refuses when it is full must be emptied, so the function deliver
// trims three of them every five minutes, and within 15 s once one refuses:
//
//   - EVENTS loses what deliver has recorded, an hour after it was published,
//     15 minutes after once it is half full, and at once when it is three quarters
//     full or refuses. It is looked at also whenever events have filled a sixteenth.
//   - MESSAGES loses what is over: confirmed by all who had to, or given up. It
//     stays for an hour, 15 minutes once the stream is half full and 2 minutes once
//     it is nearly full (nine tenths), for others who read it. What needs no
//     confirmation stays also until every consumer of the stream has acknowledged
//     it, or where there is no consumer until the stream is half full. What is not over stays until the stream's age limit.
//   - USERS keeps a number of messages for each user: a newer one takes the place of
//     the oldest of the same inbox. While more than half of the stream is used, the
//     senders that take more than an equal share lose messages, each of its largest
//     inboxes the oldest, but none of the last day; nearly full, none of the last 15
//     minutes, and if that is not enough, none of the last 30 s. So neither one
//     flooded inbox nor a sender that floods many shortens the inboxes of others. A
//     user learns of what was removed unread (GapError): each user's last such place
//     is noted 3 s before, and a follower that reads messages old enough to be removed asks for it every 2 s.
//
// TrimMessages reads only the headers of what is old enough, for a few seconds at
// a time, and goes on where it ended. What is over before everything else goes in
// one request, the rest one by one, so a message that nobody confirms keeps no
// other in the stream.
//
// WAKE keeps one message per subject: a hundred wake-ups that nobody took yet are
// one. wake.queue.* is for processes that wait right now; only wake.queue.wechat is
// in the stream too, since a function sends the tasks of that queue. notify.callers
// is like it: the name of a caller that was changed, for the processes that run now.
//
// ACCEPTED takes one message per subject and refuses the next, however long ago
// the first was: the subject is the id, and there is no window. Only Forget ends
// that.
//
// Sizes and ages are settings, and the settings rule: Ensure creates what is
// missing and has NATS change what differs, a limit that somebody set by hand
// included; sources, a mirror, republishing and a transform of subjects, which none
// has, go with a warning. Only subjects that somebody added and further copies
// stay. What NATS does not change (storage, a size for which there is no room) is
// logged once, with what to do, and the stream is used as it is. A smaller size removes nothing
// from a stream that refuses when it is full, and waits until that holds half of it
// at most; a lower age removes what is older.
//
// Each stream is made for itself. One that cannot be made stops what needs it and
// nothing else: the routes that read it, the messages that are published to it.
//
// # Users
//
// Where NATS has users, each component is one of them, and Users lists what each
// may do: publish wake-ups, and what is its work. ServerConfig makes the
// configuration of the server of it. Only the trigger makes and changes streams,
// as whoever does chooses where else their messages come from (sources, mirror) and
// go to (republish). What others publish to a stream that is missing is away until
// the trigger has made it, within 10 s. Replies go to subjects that begin with the
// name of the user, so none reads another's.
//
// NATS does not check where an answer goes: a request may name any subject for
// it, a request of the JetStream API included, and so may a consumer that pushes.
// Therefore
//
//   - a receiver has an account of its own, where the names of our subjects and
//     requests mean nothing. It imports three subjects: the state of its consumer,
//     fetching from it and acknowledging. An operator makes the consumer, as its
//     filter says what is granted;
//   - streams allow no direct gets, whose answers are somebody's data or empty. All
//     others that most components receive are JSON that no request accepts.
//
// Every user may publish wake-ups, so the trigger posts a message of WAKE as a tick
// and never as the event in its headers. An event of EVENTS must have the type of
// its subject, one of ACCEPTED must be an accepted message; what has another type,
// or claims structured mode, becomes a dead letter and is posted to no function.
//
// The trigger and deliver, and a process that serves all functions, fetch from
// consumers and empty streams. They are trusted with all streams.
//
// What NATS does not permit it leaves unanswered. The Bus takes that from the
// error that comes beside it: a subject of somebody else's stream is refused, one
// of ours is away until the settings are right.
//
// # Publishing
//
// Three outcomes, because three things follow: stored; refused (trying the same
// again is no use, a person must act); away (nothing is known against the
// message). No answer is only a refusal when a look-up by subject says that no
// stream takes it. ErrUnavailable has a scope: ErrSubjectUnavailable is about one subject that
// reached a limit of its own; ErrStreamUnavailable about one stream, which is full, has no
// leader or does not answer; any other ErrUnavailable is about the broker. What is for
// other subjects and streams need not wait.
//
// # Accepting
//
// Accept answers nil only when the stream has a message for the subject. The
// server says the same, 10077, of a subject that has its message and of a full
// stream, so a look-up decides. It asks the leader, and does not believe "there
// is none" while a message is on its way to the other replicas. What a sender is
// told of a message that was never accepted is final: it sends another.
//
// The subjects have 64 slots by sender, and a shard is some of the slots. Another
// number of shards uses other durables, which begin with the stream: whichever of
// them saves a message, it has seen all earlier ones of its sender, so two numbers
// may be at work at once.
//
// # Time
//
// A due time becomes one message schedule per time bucket, made by whoever writes
// the due time; NATS fires it, so nothing of ours needs to stay awake. Publishing
// the same bucket again replaces it. Buckets are a second within a minute, ten
// seconds within an hour, a minute within a day and an hour within 31 days, and
// what is due later is not scheduled yet: so there are 2,614 schedules of one
// subject at most, and all of them fit WAKE several times over. It never has to
// drop a schedule for another, or a hint for a schedule.
//
// The clocks of NATS, the functions and Postgres may differ. A wake-up that comes
// early finds nothing due, and its schedule is gone: who answers it asks for the
// next due time with WakeAgainAt, which is always published. One that comes late
// only comes late. For the same reason, and because a schedule may be gone, no
// process trusts one that it published for longer than half of the time that is
// left, and five minutes at most.
//
// What a process could not tell while NATS was away it tells when it is connected
// again; for processes that are gone by then the trigger wakes, whenever it is
// connected, what has a safety tick. The safety tick covers what was lost
// otherwise. Triggers tick themselves, all under one message id for each time, so
// one tick is stored: nothing about it is stored ahead, where it could be evicted,
// and without a trigger nobody would carry it.
//
// # Trigger
//
// One durable pull consumer per route; each message is one POST to
// {base}/events/{function}. Invariants:
//
//   - Routes are independent. One whose stream or consumer cannot be made is set
//     up again and again, at most ten seconds apart, and says why it does not run
//     (Ready, Routes); the others go on.
//   - A message is acknowledged only after its 2xx, and the acknowledgement is
//     confirmed. One that is lost means another delivery; functions are idempotent.
//   - Deliveries are never used up. 404, 408, 409, 425, 429, 5xx and silence come
//     again, with growing delays and not before Retry-After. A message that had
//     used up a limit of deliveries would stay in its stream, seen by nobody.
//   - Any other 4xx is the function's word that it will never take the event: it
//     is stored in DEADLETTERS first and terminated then. Where DEADLETTERS does
//     not take it, the function is asked to record it in the database.
//   - 401, 403 and redirects say that our own settings are wrong. Nothing is
//     buried for that.
//   - While a function works, the server hears from us; a slow function is not a
//     dead trigger.
//   - Nothing is pulled that would have to wait here.
//   - Each step of a route says how long it may take. One that overruns that is a
//     hang, which only a restart cures; waiting for NATS is none.
//   - What waits to come again counts as in flight, which bounds what a broken
//     function can pile up. A newer hint for the same subject ends the wait of the
//     one before: it replaces it in the stream.
//
// # Batches
//
// A route of batches keeps the order of its stream. Of all triggers NATS gives
// its messages to one, by a priority group; it posts a batch again and again,
// the same one, until the function takes it. A function that refuses a batch gets
// its events one by one, and only those that it refuses alone are buried. One
// that neither DEADLETTERS nor the function keeps is acknowledged all the same, so
// that the events behind it go on: its stream keeps it until it is saved.
//
// That one trigger is active does not say that no other still works: its pin may
// have run out while it waited for the function, or the server that knew of it is
// gone. So no batch begins while messages are in other hands. The active trigger
// collects what comes back from those that are gone, and waits for those that
// work. A trigger that ends, or finds another active, hands back what it holds.
//
// Servers before 2.11 have no priority groups: a route of batches does not run
// with them. versions.go lists what needs which server.
package bus
