// Package tasks stores tasks and the pauses of queues.
//
// # Changes
//
// A task is in one state at a time. A change, its event and its log row are committed together. A change has an event
// only if store.EventMode includes it and the event has a receiver. A promotion (a scheduled task becomes pending) has
// no log row.
//
// Claim and Extend decide in one SQL statement each, without package task. The statement of a claim takes the first
// rows in the order of the index task_live_ready, skips locked rows, and writes the log. Small claims of one queue in
// one process share a statement. Every other change (report, sweep, cancel, and an operator's retry or resolution)
// locks its rows, lets package task decide, and applies all decisions in one round trip that ends in COMMIT. These
// changes lock rows in id order, except Sweep: Sweep and Claim skip locked rows instead of waiting for them.
//
// A task that waits for its next try (RETRY_BACKOFF) is scheduled; package task sets its due time. Sweep takes an equal
// part of due rows from each queue (task_live_due_queues), so no queue waits for the backlog of another. Expired leases
// are the exception: Sweep takes them in the order of their end.
//
// If Postgres's response to a claim is lost, Claim finds the claimed tasks by the id of the claim. The statement of the
// claim may still be running. So Claim first waits for an advisory lock that each claim holds until its transaction
// ends.
//
// A report that would change an archived task has the verdict stale_claim.
//
// # Cost
//
// functions/e2e/testdata/costs.txt has the statements, WAL bytes, blocks and allocations of each
// hot call, and costs_test.go fails when one grows by more than a tenth. A submission in a flush
// (one transaction, see store.Coalescer) of 500 rows takes 16 to 17 µs of Postgres's processor time. In
// a flush of 64 rows it takes twice as much. A task in a claim of 100 takes 20 to 22 µs. Measured
// optimizations, and how much less of this time they take:
//
//	submit: json instead of jsonb in the logs           a fifth less in a flush of 500; used
//	submit: one set_config for all its settings         one statement less for each flush; used
//	submit: a second flush only if 200 rows wait        a quarter less for 64 clients, a sixth less for 256; used
//	submit: one index or constraint left out            2 to 4 µs less, whichever it is; all are needed
//	submit: COPY of bodies, live rows and logs          15 % less in a flush of 500, but seven more round trips; not used
//	claim: a generic plan if it shares no statement     180 of 410 µs less for one task, 8 % less for 100; used
//	claim: one statement for 64 pollers                 three quarters less for one task each; used
//	claim: json instead of jsonb in the log             no difference
//	claim: without the log                              a fifth less; it is needed
//	report: generic plans                               4 % less, but a plan made for an empty table may stay; not used
//
// # Idempotency keys
//
// Only the primary key of submission_keys decides whether a key is known. There is no Bloom filter
// in front of this index: if it answered "maybe", the index would be needed anyway, and a wrong "no" would send twice. The
// key is inserted before the body, in the same transaction. If the key exists, a second query reads the
// earlier submission with this key, which may have been committed after the snapshot of the insert.
//
// # Queue pauses
//
// While a pause of a queue is in force (queue_pauses), the tasks of the queue are not claimed. The
// statement of a claim also checks for a pause, once and not for each row. The row of an ended pause has no effect. Sweep, or a
// claim that finds too few tasks, removes the row and returns the number of the queue's pending tasks.
// Pollers are woken for these tasks, even if the process that resumed the queue has died.
//
// # Statistics
//
// SMS and subscribe messages are counted apart. task_done.subscribe marks the results of subscribe
// messages, so counting reads no bodies. Maintenance closes a UTC day by writing its totals to task_totals.
// Statistics counts only the results after the last closed day, and adds the stored totals. A change that
// withdraws a result takes the advisory lock TotalsLock in shared mode. Closing a day takes it in exclusive mode, so no
// result is withdrawn while it is counted.
package tasks
