// Package messages stores reliable messages and the conversations of users.
//
// # Sending
//
// Relay publishes while it holds the locks of the live rows, so it needs no lease: a relay that
// dies has changed nothing. It takes an equal part of a batch from each stream, and of that
// from each caller, by one index probe per pair. Package store describes stream pauses.
//
// Messages to URLs take longer than a lock should be held. ClaimPosts therefore moves the next
// send time, which is the lease, and SettlePosts compares it with the row. Messages are
// taken from each account, and each host of a caller, in turn, within InFlightLimits.
// Claiming and settling posts serve many callers at once, so they skip locked rows. The function
// deliver settles skipped posts again.
//
// # Accepted messages
//
// SaveAccepted saves messages in the order of their stream. The rows, the sequence numbers that
// the stream may now purge (accepted_messages) and the acknowledgements to the senders are
// committed together. A message has the same primary key whether it comes through the stream or
// through Submit, so it is saved once.
//
// A message may be delivered before it is saved. RecordDelivered and SaveAccepted both write
// the row of accepted_messages with the message's id, so the second one sees the first.
//
// accepted_messages needs no archive: its rows are deleted when the stream purges their
// messages, those of poisoned messages a day after they were rejected.
//
// # Archived messages
//
// They can still be confirmed and stay in their conversation.
package messages
