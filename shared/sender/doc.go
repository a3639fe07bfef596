// Package sender is a library for sender apps: it claims tasks, sends each through a Gateway, and reports
// the outcome.
//
// # Promises
//
//   - A message is passed to the Gateway at most once for each claim, and only after the server has marked
//     the claim as sending and the attempt is in the journal on disk. If the claim is lost before that, the
//     task is not sent.
//   - A sender that is killed does not repeat an attempt. At its next start, the sender reports every attempt in the
//     journal: with the outcome if the journal has the outcome, else as unknown, and then the task's on_unknown decides.
//     Tasks that were claimed and not marked go to another sender when their leases end.
//   - A report is repeated until the server accepts it or refuses it permanently (409, for example). A repeated
//     report has no second effect: it has the same claim_id.
//   - If a Gateway panics or does not return in time, the outcome is unknown, as it is for a zero Result.
//   - The lease of a task is extended from its claim until its report gets a response. If the extension fails for
//     too long, the ctx of Send ends before the lease.
//   - At most three tasks for each concurrent send are claimed and not yet reported: a sender that cannot
//     report stops claiming.
//   - After the ctx of Run has ended, nothing is claimed and no attempt begins, waiting tasks are released,
//     and running sends have the grace period to end. Outcomes that cannot be reported stay in the journal.
//
// # What cannot be promised
//
//   - That a provider delivers a message only once. If the response of the provider is lost, the sender does not know
//     whether the provider delivered the message, and the policy on_unknown decides. Use the task id as idempotency key
//     with providers that support one.
//   - Outcomes after the loss of the journal's disk. Each such task is settled by on_unknown when its lease
//     ends; with resend a message that was sent is sent again.
//   - A rate limit for several processes: Config.Interval applies to each process alone.
//
// # Order of an attempt
//
// Claim, wait for the interval, mark as sending, write and sync the journal, send, write and sync the
// result, report, remove the attempt from the journal. A kill before the mark only delays the task until its
// lease ends. A kill between the mark and the sync of the result makes the outcome unknown. Attempts that begin
// or end at the same time share a sync.
package sender
