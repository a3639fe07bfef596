// package store is all SQL of Sendonce; every table has one owning file. A
// function tells the story, the domain (shared/task) decides, the store writes.
//
// # Hot and cold
//
// A task is written once as a body (tasks), lives as one narrow row while it is
// not final (task_live) and ends as one result row (task_done). There is one row
// to lock, and two live states at once are impossible by key.
//
// # Foreign keys
//
// There is one, webhook_endpoints.registered_caller: endpoints are few and seldom
// made. Elsewhere a row is written in the commit of the row that it follows, and a
// key would cost where it matters, as Postgres locks the row referred to, which
// writes to it, for each row that refers to it (measured on Postgres 15):
//
//	task_live, task_done -> tasks, and those of messages
//	    500 results are written in 20 ms instead of 4, with 30 % more WAL
//	subscribe_message_sends -> subscribe_message_logs
//	    an order takes 0.5 ms instead of 0.2
//	logs, task events, receipts, accepted_messages -> tasks, messages
//	    as the first; and logs outlive what they are of
//	webhook_deliveries -> webhook_endpoints, operator_actions -> callers
//	    deliveries stay to be read when their endpoint is deleted; caller 0 has no row
//	webhook_deliveries -> webhook_events
//	    deliveries that were recorded before there was that table have no row in it
//
// # Transitions
//
// Claim decides in SQL: one statement locks the left edge of task_live_ready,
// skips what others hold, and writes the log. Everything else that changes a
// task (report, sweep, cancel, retry, resolve) locks its rows in id order, lets
// the domain decide, and applies all decisions: two round trips, each one
// pgx.Batch, the second ending in COMMIT. Rows are deleted and updated by id,
// never by a ctid read earlier: a statement that waited for a lock would miss
// the newer version of the row.
//
// Reliable messages are kept the same way: messages, message_live,
// message_done. The relay publishes while it holds the live rows, so it needs no
// lease: a relay that dies has changed nothing. Messages to URLs are deliver's,
// whose calls take longer than a lock should be held: their next send time is the
// lease, and what comes back is compared with it.
//
// # Streams that take nothing
//
// What waits for the broker is grouped by stream: message_live.stream and
// event_outbox.stream. A relay takes from each stream an equal part of a batch, and
// from each caller an equal part of that, by one probe of the index per pair. A
// stream that is full, has no leader or does not answer gets a row of stream_pauses,
// and until its time is over no statement looks at what waits for it: not a row of it
// is written and one per caller is found, so 200,000 waiting messages cost other
// streams nothing. The pause is 2 s, then twice as long
// each time, up to a minute. When it is over a few messages, or one row of events,
// are tried; if the stream takes them the pause is removed and the rest follows in
// its order. The streams of others are not known by name: their subjects fall into
// 64 groups by their first token, and streams of one group wait for each other.
//
// Only a message or an event that its stream refuses by itself, as for a subject
// with a limit of its own, gets a later next_at, and others overtake it. While the
// broker is away nothing is paused and nothing waiting is written: the one row per
// stream in stream_pauses, with failures 0, holds what it said.
//
// # Pauses
//
// A queue with a row of queue_pauses hands out nothing: a claim asks so once, in
// its own statement. A pause that is over, by its time or by hand, counts no more,
// and its row stays until a sweep, or a claim that finds too little, removes it and
// tells who waits what waits there: so an end that nobody lived to tell is told. A
// poll that waits knows the end of its queue's pause itself.
//
// template_pauses counts errors in a row by template of subscribe messages and the
// caller that ordered them.
// provider_tokens has the access tokens that all instances share, each fetched by
// one of them under an advisory lock.
//
// # Telling
//
// Whoever changes a task writes event_outbox in the same commit, one row for each
// caller, kind of change and flush, when somebody listens to that kind: callers and callback URLs are
// known from the live row. The id of that row orders the events of one task, as
// it is taken while the task is locked. The relay publishes and deletes.
//
// deliver keeps each event in webhook_events and a row of webhook_deliveries for each
// event and endpoint (the key deduplicates), with each try in it. A try is claimed for a lease; claims is the
// fence. Deliveries and messages to URLs are taken in turn of each caller, and of each
// endpoint or host of a caller, and none has more than its share in hand. What a
// caller with very many hosts has due is found without a look at each host. Whoever locks both
// locks endpoints first and then deliveries. What serves many callers at once (recording,
// claiming, settling) waits for neither: it needs no lock, or skips what is locked, and
// deliver settles that again. Deleting an endpoint is a short transaction: the sweep ends
// what the deletion leaves pending, and what is recorded at the same time.
//
// dead_letters holds what no retry will cure, for an operator.
//
// # Accepted messages
//
// SaveAccepted is where a stream's order becomes the database's: rows, what
// remains to be forgotten of the stream (accepted_messages) and the
// acknowledgements to the senders are one commit. The primary key of messages
// joins it with the other path. When a message was delivered before it was saved
// meets its row in accepted_messages, whichever comes first: both write the row
// with that id, so the second sees the first.
//
// A retry that RETRY_BACKOFF lets wait is scheduled, as one that was released for
// a while: the domain says until when. Sweep takes what fell due of each queue in turn
// (task_live_due_queues), so no queue waits behind what another has due.
//
// # Alerts
//
// An alert is one row while a queue is over a threshold: the partial unique index
// alerts_open decides, so any number of instances may look. Looking is reading, in
// a snapshot of the other role; what the domain makes of it is written under a
// lock, in a commit with the event, and what another look raised and cleared since
// that snapshot is not raised again. Nobody polls: a failure that counts, a task
// that became pending and an open alert ask sweep for a look (OnFailed). Admins are
// told.
//
// # Statistics
//
// SMS and subscribe messages are counted apart: task_done.subscribe says which of
// the two a result is of, so that counting reads no bodies. task_totals keeps both
// for each closed UTC day. subscribe_totals keeps the messages themselves (rows of
// subscribe_message_logs, by caller and type of template) for the same days. Closing
// a day writes both in one transaction, under an advisory lock that whoever changes
// a result of a closed day takes shared. A message that leaves a closed day, as it is
// sent again, is moved by the trigger move_subscribe_total: it fires for rows of
// earlier days only and adds rows instead of changing any, so no two changes wait for
// each other. Rows that are inserted or deleted move nothing: an archived message
// stays counted, and one that comes back is inserted as it was before it changes.
//
// # What is old
//
// archivables lists the tables that old rows leave, with two statements each: one
// finds the next page of old rows by an index in the order of their age, the other
// archives the rows of a page and is sure of each by itself. What is over for
// RETENTION_DAYS moves to an archive table: tasks, messages, subscribe messages and
// operator actions. What is over for RETENTION_LOG_DAYS is deleted: webhook
// deliveries, cleared alerts, and dead_letters that only counted panics. Nothing is
// taken that is not finished or that is of the last day. Events that wait to be
// published find their tasks and messages in the archive; alerts wait for them. A page that
// the database refuses is archived row by row, and the rows at fault are reported.
//
// Locked rows are skipped. A report that waited for a task that moved finds it
// archived: there it is judged as ever, and what would have changed it is
// stale_claim, kept in report_logs. Results are walked by id, since ids are in order
// of creation and no index on their age is worth its writes. Tasks and subscribe
// messages of closed days alone are archived: the totals keep them counted.
//
// What named a row stays taken. Key rows of tasks stay. Ids of messages and names of
// subscribe messages are looked for in the archive too, and always after the insert
// into the main table: an insert that waited for a row which moved meanwhile does
// not see it with the snapshot that it began with. A subscribe message that failed
// comes back to the main table when it is sent again. An archived message is still
// confirmed, and stays in its conversation. Otherwise archived rows are in no list,
// and not in the views sms_tasks and reliable_messages, which are of the main tables.
//
// accepted_messages needs no archive: its rows go when the stream lets go of their
// messages. event_outbox and the live tables hold only what is under way.
//
// The logs go by whole months, one DROP in a transaction of its own, which waits
// at most 100 ms for its lock: as long as it waits it keeps writers out.
//
// # Group commit
//
// Submit, messages.Submit and Report share transactions between calls (coalescer).
// A caller is released only after its own commit. When the answer to a COMMIT is lost the
// store finds out: ids are made before the commit, so a submission meets its own
// primary key and a claim its own claim_id; a report finds
// its row in report_logs.
//
// # Fairness between callers
//
// Rows of group commit wait in a queue for each caller (callerQueues), and every flush
// takes an equal part of each. For connections, callers take turns (turns): WithCaller
// says whose turn a call uses, and one caller has at most half of a pool. Work for
// several callers needs no turn: flushes, events, and what several calls wait for.
//
// # Keys
//
// The primary key of submission_keys is the only judge of an idempotency key;
// no filter stands before it, since a filter that says "maybe" must ask the
// index anyway and one that says "no" wrongly would send twice. The key row is
// inserted before the body, in the same transaction. A row that meets a key is
// resolved by a second look with a fresh snapshot: the key may have been
// committed after the first one's.
//
// # Indexes with the names of the original SMS tables
//
// Kept by name: idx_sms_templates_active, idx_default_sms_sent,
// idx_receive_logs_created_at, idx_send_logs_task_id, idx_report_logs_task_id,
// idx_sms_tasks_phone (on tasks (phone_number, id)). Replaced:
//
//	idx_sms_tasks_status          task_live_ready, task_live_due, task_live_leases, task_done_failed
//	idx_sms_tasks_created_at      the primary key of tasks: a UUIDv7 is in order of creation
//	idx_sms_tasks_processing_app  none: live claims are few, and are found by id
//	idx_default_sms_phone         the unique constraint of default_sms_data.phone_number
//
// # Roles
//
// The hot functions log in as a role whose settings keep plans on the indexes
// even when statements were prepared while the tables were empty; statistics
// and lists use another. Both are made by migrate with ALTER ROLE and not sent
// at connect, so that they hold behind PgBouncer too.
//
// # Time
//
// Leases, send times and expiries are the database's now(), never a process's
// clock.
package store
