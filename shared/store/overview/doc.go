// Package overview counts what happens to tasks and webhooks, and reads one Snapshot of all queues, senders,
// webhooks and messages, for the console and for metrics.
//
// # Cost
//
// Read is one read-only transaction of the read role. Every number is counted with an index scan.
// Counting stops at maxRows rows of one queue and state, at about totalRows rows of one state in all
// queues, at maxRows leases of all queues, and at maxRows for each other number, except those of
// webhook endpoints. If counting stopped at a limit, Count.More is set.
//
// # Counters
//
// Submit, claim and report do not update Totals and Throughput: counters in the same commit would
// cost each call a statement, and all calls would lock the same rows. Store.Count updates the counters
// later, from rows that these calls write anyway:
//
//	submissions      tasks, by their ids, which are in order of time (UUIDv7)
//	results          task_done, by a BRIN index on the time of the result
//	claims, waits    send_logs, at most maxClaims rows of each finished task
//	lease timeouts   report_logs, by an index that has only timeouts
//	reports          report_logs, by a BRIN index on the time of the report
//	deliveries       webhook_deliveries, by the index of finished deliveries
//
// The claims of a task are counted when the task is finished: an index on the time of all claims would
// cost each claim three blocks.
//
// Store.Count adds only rows that are older than Lag. Transactions of the functions end within 30 s,
// so all rows older than Lag are committed when Store.Count reads. A task may finish several times: an
// operator retries it, or it is reported as sent after it failed. Each result is counted, unless it was
// withdrawn before Store.Count read it. A counted result stays counted, so no counter becomes smaller. If
// the clock of an instance is behind the clock of the database by more than Lag, the submissions of this
// instance are not counted.
//
// overview_counted has the time up to which everything is counted. The transaction that adds the counts
// locks and updates this row, so any number of processes may count. If the uncounted time is too long for
// the statement timeout, it is counted in parts. A Store remembers how long the next part may be, because
// one call of Store.Count has time for only a few attempts.
//
// Callers choose the names of queues and apps. The MaxNames queues and the MaxNames apps that were counted
// first have counters of their own. All other queues share one set of counters, and so do all other apps. If nothing
// was counted for a name in 30 days, the name is removed with its counters. Until then a name keeps its
// counters, even if other names have more tasks: if a queue moved to the shared counters, Prometheus would
// mistake that for a restart. If fewer than MaxNames queues or apps have counters, Read also shows the
// largest of those that have none yet.
package overview
