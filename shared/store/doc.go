// Package store opens the database and has what its subpackages share. Each subpackage has the
// SQL of one subject. Functions parse requests and write responses, the domain (shared/task,
// shared/message) decides, and the store writes.
//
// # Tables
//
// The body of a task (tasks) is written once. Its state is one narrow row of task_live while the
// task is not final, and one row of task_done afterwards. So there is one row to lock, and a task
// cannot have two live states. Messages are stored in the same way.
//
// The only foreign keys are callers.made_by, callers.account_id and
// webhook_endpoints.registered_caller: there are few callers and endpoints, and they are rarely created. Other
// references have no foreign key, for one of two reasons. A foreign key would lock, and so write to, the
// referenced row each time (measured on Postgres 15). Or the referenced row may be missing:
//
//	task_live, task_done -> tasks; message_live, message_done -> messages
//	    with a foreign key 500 results take 20 ms instead of 4 ms, with 30 % more WAL
//	subscribe_message_sends -> subscribe_message_logs
//	    with a foreign key an insert takes 0.5 ms instead of 0.2 ms
//	logs, task events, receipts, accepted_messages -> tasks, messages
//	    the same cost as for task_live; and logs are kept longer than their tasks
//	webhook_deliveries -> webhook_endpoints, operator_actions -> callers
//	    deliveries stay readable when their endpoint is deleted; the built-in admin, 0, has no row
//	webhook_deliveries -> webhook_events
//	    older deliveries have no row in webhook_events
//
// # Transactions
//
// Leases, send times and expiries are compared with the clock of the database, never with the clock of a process.
//
// Rows that can be updated are changed and deleted by id, never by ctid: after a statement has waited for a lock, the
// row may have a newer version with another ctid, which the statement would miss.
//
// Calls of tasks.Submit, tasks.Report and messages.Submit share transactions, and so do small claims of one queue
// (Coalescer). If the response to a COMMIT is lost, the transaction is repeated and finds out whether the first try was
// committed. Ids are made before the commit, so a repeated submission finds its own primary key, a claim
// finds its own claim_id, and a report finds its row in report_logs.
//
// Callers that wait for connections get them in turn, and one caller has at most half of a pool (connectionLimiter).
// WithCaller sets the caller of a context. Work for several callers is not limited, such as flushes, the relay of
// events and the loading of shared caches.
//
// # Events
//
// A transaction that changes tasks also writes the events that Config.Events selects: one row of event_outbox for each
// caller and kind of change. If no endpoint and no callback URL receives the kind, no row is
// written. The id of the row is assigned while the tasks are locked, so ids order the events of one
// task.
//
// dead_letters has the events that a function will never accept; an operator decides what to do with them. A row
// with dead = false is not a dead letter yet: it counts how often a function panicked while it handled the event.
//
// # Stream pauses
//
// Messages and events that wait for the broker are grouped by stream (message_live.stream,
// event_outbox.stream). A stream that is full, has no leader or does not reply gets a row in
// stream_pauses. Until the pause ends, relays read one row per caller of that stream and update
// no row. The first pause lasts 2 s. Each further pause lasts twice as long, up to a minute. After the pause, a
// few messages or one row of events are tried. If the stream accepts them, the row is deleted and
// the other messages and events follow in order. Streams that do not belong to Sendonce are not paused by name, because
// it does not know their names: their subjects are divided into 64 groups by a hash of the first token, and the
// subjects of one group are paused together.
//
// If a stream refuses one message or event but not the others, for example because of a limit of its subject,
// the next_at of that row becomes later, and other rows are published before it. While the broker itself is
// unavailable, no stream is paused and no waiting row is updated. stream_pauses then has the error, in one row per
// stream. In this row, failures is 0, unless the stream itself had failed before.
//
// # Roles
//
// Roles has the database users. The settings of Hot, Admin and Retention make plans use the
// indexes, even if statements were prepared while the tables were empty. Read, for lists and
// statistics, is read-only. The command migrate makes these settings with ALTER ROLE, so that they also apply
// behind PgBouncer. A SET after connecting would not apply there.
//
// # Indexes of the original SMS tables
//
// These indexes kept their names: idx_sms_templates_active, idx_default_sms_sent, idx_receive_logs_created_at,
// idx_send_logs_task_id, idx_report_logs_task_id, idx_sms_tasks_phone (on tasks (phone_number,
// id)). These were replaced:
//
//	idx_sms_tasks_status          task_live_ready, task_live_due, task_live_leases, task_done_failed
//	idx_sms_tasks_created_at      the primary key of tasks: a UUIDv7 is in order of creation
//	idx_sms_tasks_processing_app  none: live claims are few, and are found by id
//	idx_default_sms_phone         the unique constraint of default_sms_data.phone_number
package store
