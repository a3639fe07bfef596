// Package tasks stores tasks and the pauses of queues.
//
// # Changes
//
// A task is in one state at a time. A change, its event and its log row are committed together; a
// promotion has no log row. Claim decides in SQL: one statement locks the first rows of the index
// task_live_ready, skips locked rows, and writes the log. Small claims of one queue in
// one process share that statement. Every other change (report, sweep, cancel, retry, resolve)
// locks its rows, lets the domain decide, and applies all decisions in one round trip that ends in
// COMMIT. These changes lock rows in id order, except Sweep: Sweep and Claim skip locked rows instead
// of waiting for them.
//
// A retry that waits for RETRY_BACKOFF is a scheduled task; the domain sets its due time. Sweep
// takes an equal part of due rows from each queue (task_live_due_queues), so no queue waits for the
// backlog of another.
//
// If the response to a claim is lost, the claim is looked up by its id. The statement of the claim may
// still be running. So the lookup first takes an advisory lock that each claim holds until its end.
//
// A report that would change an archived task has the verdict stale_claim.
//
// # Cost
//
// functions/e2e/testdata/costs.txt has the statements, WAL bytes, blocks and allocations of each
// hot call, and a test there fails when one grows by more than a tenth. A submission in a flush
// (one transaction, see store.Coalescer) of 500 rows takes 16 to 17 µs of Postgres's processor time. In
// a flush of 64 rows it takes twice as much. A task in a claim of 100 takes 20 to 22 µs. Measured changes:
//
//	submit: json instead of jsonb in the logs           a fifth less in a flush of 500; used
//	submit: one statement for all settings              one statement less for each flush; used
//	submit: a second flush if 200 or more rows wait     a quarter less with 64 connections, a sixth with 256; used
//	submit: without any one index or constraint         2 to 4 µs less; all are needed
//	submit: COPY of bodies, live rows and logs          15 % less in a flush of 500, but seven more round trips; not used
//	claim: a generic plan for one request               180 of 410 µs less for one task, 8 % less for 100; used
//	claim: one statement for 64 pollers                 a quarter of Postgres's processor time for one task each; used
//	claim: json instead of jsonb in the log             no difference
//	claim: without the log                              a fifth less; it is needed
//	report: generic plans                               4 % less, but a plan made for an empty table may stay; not used
//
// # Idempotency keys
//
// Only the primary key of submission_keys decides whether a key is known. There is no filter in
// front of this index: after "maybe" the index is needed anyway, and a wrong "no" would send twice. The
// key is inserted before the body, in the same transaction. If the key of a submission exists, a
// second query finds the first call, because that call may have been committed after the snapshot of
// the first query.
//
// # Queue pauses
//
// While a pause of a queue is in force (queue_pauses), the tasks of the queue are not claimed. A claim
// checks for a pause once, in its own statement. The row of an ended pause has no effect. Sweep, or a
// claim that finds too few tasks, removes the row and returns the number of the queue's pending tasks.
// Pollers are woken for these tasks, even if the process that ended the pause has died.
//
// # Statistics
//
// SMS and subscribe messages are counted apart. task_done.subscribe marks the results of subscribe
// messages, so counting reads no bodies. task_totals has the totals of each closed UTC day, and
// Statistics counts only later results. A change that withdraws a result takes the advisory lock
// TotalsLock in shared mode. Closing a day takes this lock in exclusive mode.
package tasks
