// Package sender is a library for sender apps: it claims tasks, sends each through a Gateway, and reports
// the outcome.
//
// # Promises
//
//   - A message is passed to the Gateway at most once for each claim, and only after the server has marked
//     the task as sending and the attempt is in the journal on disk. If the claim is lost before that, the
//     message is not sent.
//   - After a kill, the sender does not resume an attempt. At its next start, it reports every attempt in the journal:
//     with the outcome if the journal has the outcome, else as unknown. After an unknown outcome, the task's on_unknown
//     decides whether the message is sent again. Tasks that were claimed and not marked can be claimed again when their
//     leases end.
//   - A report is repeated until its response is final: the server has accepted it, or has refused it permanently (with
//     409, for example). A repeated report has no second effect, because it has the same claim_id.
//   - If a Gateway panics, or does not return within 5 s after its ctx has ended, the outcome is unknown. The outcome
//     of a zero Result is unknown too.
//   - The lease of a task is extended from its claim until the response to its report is final. If the lease cannot be
//     extended, the ctx of Send ends before the lease ends.
//   - At most three tasks for each concurrent send are claimed and not yet reported: a sender that cannot
//     report stops claiming.
//   - After the ctx of Run has ended, nothing is claimed and no attempt begins. Tasks that wait to be sent are
//     released, and running sends have the grace period to end. Outcomes of sends that cannot be reported stay in the
//     journal.
//
// # What cannot be promised
//
//   - That a provider delivers a message only once. If the response of the provider is lost, the sender does not know
//     whether the provider delivered the message, and the policy on_unknown decides. Use the task id as idempotency key
//     with providers that support one.
//   - That outcomes survive the loss of the journal's disk. When the lease of a marked and unreported task
//     ends, on_unknown decides: with resend, the message is sent again even if it was sent.
//   - A rate limit for several senders together: Config.Interval applies to each sender alone.
//
// # Order of an attempt
//
// Claim, wait for the interval, mark as sending, write the attempt to the journal and sync, send, write the
// result to the journal and sync, report, remove the attempt from the journal. A kill before the mark delays the
// task until its lease ends, and uses up a retry if one is left. A kill between the mark and the sync of the result
// makes the outcome unknown. Attempts that begin or end at the same time share a sync.
package sender
