// Package maintenance closes days (it stores their totals), archives and deletes old rows, makes and drops log
// partitions, and encrypts stored secrets again after a key change. To archive a row means to move it to an archive table
// or, in some tables, to delete it.
//
// A UTC day is counted in one or more parts. One transaction adds a part to task_totals and to subscribe_totals, under
// the advisory lock tasks.TotalsLock. If a subscribe message changes after it was counted, the change is stored in
// subscribe_total_changes and later merged into the totals, in a transaction without this lock.
//
// archivables lists the tables and their statements. The statement page finds the next old rows by an index: those of
// tasks in the order of their creation, those of other tables in the order in which they finished. The statement
// archive archives the rows of a page and checks each row again.
//
// These rows move to archive tables after RETENTION_DAYS: finished tasks, messages and subscribe messages, and all
// operator actions. These rows are deleted after RETENTION_LOG_DAYS: finished webhook deliveries, events without
// deliveries, finished bulk changes, cleared alerts, and dead_letters that are not dead, which only count panics.
//
// These rows stay: unfinished rows, rows of the last 24 hours, and subscribe messages with more than maxSends sends. An
// alert stays until the events that were written before it was cleared are published, since its own events are made
// from its row. Events of tasks and messages are made from the archive too. Tasks and subscribe messages stay until
// their day is closed, so the totals count them.
//
// Locked rows are skipped. If a page fails with an error that a single row may have caused, the rows of the page are
// archived one by one, and the rows that fail again are reported.
//
// A repeat of an archived submission is still recognised. Idempotency keys of tasks (submission_keys) are not archived.
// Ids of messages and business keys of subscribe messages are searched in the archive too, always by a statement after
// the insert into the main table: the insert may have waited for a row that was archived meanwhile, and the snapshot of
// the insert does not show the archived row.
//
// Archived rows are in no list except conversations, the subscribe messages of one business object (BusinessLogs) and
// their sends (History). The views sms_tasks and reliable_messages show the main tables only.
//
// Logs are dropped by whole months. Each DROP is a transaction of its own and waits at most 100 ms for its lock: while
// it waits, all writers of the log wait too.
package maintenance
