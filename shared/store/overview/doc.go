// Package overview reads one Snapshot of all queues, senders, webhooks and messages, for the console
// and for metrics.
//
// # Cost
//
// Read is one read-only transaction of the read role. Every number is counted with an index scan.
// Counting stops at maxRows rows of one queue and state, at about totalRows rows of one state in all
// queues, and at maxRows leases of all queues; then Count.More is set.
//
// # Counters
//
// Submit, claim and report do not update Totals and Throughput: counters in the same commit would
// cost each call a statement, and all calls would lock the same rows. Store.Count updates them
// later, from rows that these calls write anyway:
//
//	submissions      tasks, by their ids, which are in order of time (UUIDv7)
//	results          task_done, by a BRIN index on their time
//	claims, waits    send_logs, for each finished task
//	lease timeouts   report_logs, by an index of timeouts alone
//	reports          report_logs, by a BRIN index on their time
//	deliveries       webhook_deliveries, by the index of finished ones
//
// Claims are counted when their task is finished, because an index on the time of all claims would
// cost each claim three blocks.
//
// Store.Count adds only rows that are older than Lag. Transactions of the functions end within 30 s,
// so all rows older than Lag are committed when Store.Count reads. A task that an operator retries, or that is reported as sent
// after it failed, is counted as finished each time, so no counter ever becomes smaller. A submission
// of an instance whose clock is behind that of the database by more than Lag is not counted.
//
// The time up to which everything is counted (overview_counted) is updated in the transaction that
// adds the counts, under the lock of its row, so any number of processes may count. If the
// period that is not counted yet is too long for the timeout of the statement, it is counted in parts.
//
// Callers choose the names of queues and apps. The first MaxNames names have counters of their own;
// all others share one set of counters. A name that was not counted for 30 days is removed with its
// counters. Which names have counters does not depend on their size: a queue would move from one
// counter to another, which Prometheus would mistake for a restart. Read also shows the largest other
// names, as long as there are fewer than MaxNames.
package overview
