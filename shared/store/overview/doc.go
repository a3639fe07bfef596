// Package overview reads what an operator wants to see of the whole system: one Snapshot of all
// queues, senders, webhooks and messages, for the console and for metrics.
//
// # Cost
//
// Read is one read-only transaction of the role for lists. Every number is counted by an index, and
// counting stops: at maxRows rows of one queue and state, and at about totalRows rows of all queues
// together. A Count says when it stopped. The statements have a timeout of their own.
//
// # Counters
//
// Totals and Throughput are not counted by those who submit, claim and report: counters in the same
// commit would cost each call a statement, and rows that all calls lock. Count adds them up later,
// from what these calls write anyway: submissions by their ids, which are in order of time (UUIDv7);
// results from task_done by its index on their time, with the claims of each finished task from
// send_logs; lease timeouts from report_logs, by an index of timeouts alone. Each row is read once. An
// index on the time of all claims and reports was tried: it costs each of them three blocks. So
// claims, waits and senders are counted when their task is finished.
//
// Count adds only what happened before Lag ago. Transactions of the functions end within 30 s, so
// no older row is committed later. A counter never becomes smaller: a task that an operator retries,
// or that is reported as sent after it failed, is counted as finished each time. A submission from an
// instance whose clock is later than the database's by more than Lag is not counted.
//
// The time up to which everything is counted (overview_counted) is updated in the transaction that
// adds the counts, under the lock of its row, so any number of processes may call Count. When it was not called for long, it
// counts in smaller parts that end within a timeout.
//
// Callers choose the names of queues and apps. The first MaxNames names have counters of their own;
// all others share one. A name that was not counted for 30 days is removed. Names are never chosen by
// size: a queue would move from one counter to another, which looks like a restart.
package overview
