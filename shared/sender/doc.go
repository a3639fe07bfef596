// Package sender is the sending side of Sendonce as a library: a loop that
// claims tasks, gives each to a Gateway, and reports what came of it.
//
// # Promises
//
//   - A message is given to the Gateway at most once for each claim, and only
//     after the server has marked the claim as sending and the journal has the
//     attempt on disk. A claim that the server says is lost is not sent.
//   - A killed sender repeats nothing that it began. Its next start reports every
//     attempt that it finds in the journal: the outcome, when that was known, or
//     unknown, for which the submitter's on_unknown decides. What was claimed and
//     not marked goes to another sender when its lease ends.
//   - An outcome is reported until the server answers. Saying it twice is
//     harmless, as each report carries its claim_id.
//   - A Gateway that panics, or does not return once its time is over, has an
//     unknown outcome; so has a Result that says nothing.
//   - The lease of a task is lengthened from its claim until its report is
//     answered. When that fails for too long, the ctx of Send ends before the lease.
//   - No more than three tasks per concurrent send are ever in hand, reports that
//     the server did not take included: a sender that cannot report stops claiming.
//   - When the ctx of Run ends, nothing more is claimed or begun, tasks in hand are
//     released, and sends under way have the grace period to end. What cannot be
//     reported then stays in the journal.
//
// # What cannot be promised
//
//   - That a provider acts once on what it was sent once, or whether it acted at
//     all when its answer is lost. That is what on_unknown is for. The task id makes
//     a good idempotency key with providers that know such a thing.
//   - A memory without its disk. When the journal is lost, the outcomes in it are:
//     each such task is settled by on_unknown when its lease ends, and with resend
//     a message that was sent is sent again.
//   - Exact pacing across processes: Config.Interval is that of one process.
//
// # Order of an attempt
//
// Claim, wait for the pace, mark as sending, write and sync the journal, send,
// write and sync the result, report, strike the entry from the journal. A kill
// before the mark costs nothing but the wait for the lease; a kill from the mark
// on leaves the attempt unknown, until the result is in the journal. Attempts
// that begin or end at once share a sync.
package sender
