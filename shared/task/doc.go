// Package task is the domain of Sendonce's tasks: what a message may look
// like, which states a task passes through, and what a report, a lapse of time
// or an operator may change. It is pure: it knows no clock, no database and no
// wire, and imports the standard library only.
//
// # States
//
//	            send_at                      claim
//	scheduled ----------> pending <------------------------> processing
//	    |                 |  ^  ^    released, failed+retry,   |     |
//	    | cancel, expiry  |  |  |    unknown or lapsed+resend  |     | unknown or lapsed,
//	    v                 v  |  +----------- resend -----+     |     | on_unknown hold
//	  failed <---------------+ retry by hand             |     |     v
//	    ^  ^                                             +-----|-- held
//	    |  +------ rejected, exhausted, timeout, unknown ------+     |
//	    +------------------ resolved as failed ----------------------+
//
//	succeeded <--- a success of the newest claim, from processing, and late from
//	               scheduled, pending, held and failed (timeout, unknown, expired)
//
// # Invariants
//
//   - Only a report of the newest claim is applied. It is recognised by claim_id and
//     app_id, and by app_id alone for a sender that sends no claim_id.
//   - A success is never undone. A failure is undone only by a late success or
//     by hand.
//   - Whether a failure deserves a retry is the sender app's judgement; the
//     domain only says whether one is still allowed.
//   - Nobody can know whether a silent sender sent. The submitter chooses what
//     then happens (Policy); the one exception is a claim that promised to mark
//     each send and did not.
//   - What a submission means (its fingerprint) is fixed before templates,
//     default content and the country of phone numbers are applied, so that a
//     replay stays a replay whatever an operator changed meanwhile.
//   - A stored phone number stays the same number under any default country
//     that was set before or is set later (Country).
package task
