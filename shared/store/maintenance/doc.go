// Package maintenance closes days, archives and deletes old rows, makes and drops log partitions,
// and encrypts stored secrets again after a key change.
//
// A day is counted in parts: each part is added to task_totals and subscribe_totals in one transaction, under the advisory
// lock tasks.TotalsLock. Changes of counted subscribe messages are merged later, in transactions without this lock.
//
// archivables lists the tables with two statements each. One finds the next page of old rows by an index in the order of
// their age. The other archives the rows of a page and checks each row again. After RETENTION_DAYS, finished tasks,
// messages, subscribe messages and operator actions move to archive tables. After RETENTION_LOG_DAYS, finished webhook
// deliveries and their events, bulk changes, cleared alerts, and dead_letters that only counted panics are deleted.
// Unfinished rows, rows of the last day and subscribe messages with more than maxSends sends stay. Events that wait to be published find their tasks and messages in the
// archive; alerts are kept until their events are published. Tasks and subscribe messages are archived only after their
// day is closed, so the totals count them.
//
// Locked rows are skipped. If the database refuses a page, the rows of the page are archived one by one, and the refused
// rows are reported.
//
// A repeat of an archived submission is still recognised. Idempotency keys of tasks (submission_keys) are not archived.
// Ids of messages and business keys of subscribe messages are searched in the archive too, always by a statement after
// the insert into the main table: the insert may have waited for a row that was archived meanwhile, and the snapshot of
// the insert does not show the archived row.
//
// Archived rows are in no list except conversations, the subscribe messages of one business object (BusinessLogs) and
// their sends (History). The views sms_tasks and reliable_messages show the main tables only.
//
// Logs are dropped by whole months. Each DROP is a transaction of its own and waits at most 100 ms for its lock, because
// writers wait as long.
package maintenance
