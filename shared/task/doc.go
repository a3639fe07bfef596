// Package task has the domain rules of tasks: which input is valid, the states of a task, and what a report, a
// due time or an operator may change. It uses no database and no network, and imports only the standard library. Only
// NewID reads a clock.
//
// # States
//
//	            send_at                      claim
//	scheduled ----------> pending <------------------------> processing
//	    |                 |  ^  ^    released, failed+retry,   |     |
//	    | cancel, expiry  |  |  |    unknown or timeout+resend |     | unknown or timeout,
//	    v                 v  |  +----------- resend -----+     |     | on_unknown hold
//	  failed <---------------+ manual retry              |     |     v
//	    ^  ^                                             +-----|-- held
//	    |  +-- rejected, exhausted, timeout, unknown, expired -+     |
//	    +------------------ resolved as failed ----------------------+
//
//	succeeded <--- a success of the newest claim, from processing, and late from
//	               scheduled, pending, held and failed (timeout, unknown, expired);
//	               held, resolved as succeeded
//
// A retry or release with a delay leads to scheduled instead of pending.
//
// # Invariants
//
//   - Only a report of the newest claim is applied. The report must come from the caller that made this claim (if the
//     caller is known), and have the app_id of the claim. If the report has a claim_id, it must be that of the claim.
//   - A success is never undone. A failure is undone only by a late success or by an operator.
//   - The sender app decides whether a failure should be retried; the domain decides whether a retry is still
//     allowed.
//   - If a sender stops without a report, the outcome is unknown and the submitter's Policy decides what
//     happens. The exception is a task whose app promised to mark it before the send, and did not mark it: it was
//     not sent.
//   - The fingerprint of a submission is computed before templates, default content and the default country of phone
//     numbers are applied, so that a replay stays a replay whatever an operator changes meanwhile.
//   - A phone number that is stored with + does not depend on the default country. Country.Spellings returns the
//     forms in which a number may have been stored before a default country was set.
package task
