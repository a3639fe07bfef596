// Package messages stores reliable messages and the conversations of users.
//
// # Sending
//
// Relay publishes while it holds the locks of the live rows, so it needs no lease: a relay that dies has changed
// nothing. Each caller gets an equal part of a batch, divided equally among its streams. Package store describes
// stream pauses.
//
// A POST to a URL takes longer than a lock should be held. So ClaimPosts moves next_at to the end of a lease, and
// SettlePosts counts the result in full only if next_at is still the same. Messages are taken from each account, and
// each host of a caller, in turn, within InFlightLimits. Claiming and settling posts serve many callers at once, so
// they skip locked rows. The function deliver settles skipped posts again.
//
// # Accepted messages
//
// SaveAccepted saves messages in the order of their stream. The rows, the sequence numbers that the stream may now
// purge (accepted_messages) and the acknowledgements to the senders are committed together. A message has the same
// primary key whether it comes through the stream or through Submit, so it is saved once.
//
// A message may be delivered before it is saved. RecordDelivered and SaveAccepted both write the row of
// accepted_messages with the message's id, so the later one sees the row of the earlier one. The row is deleted when the
// message is purged from the stream. If the message cannot be stored, its row is deleted a day after it was rejected.
//
// # Archived messages
//
// An archived message can still be confirmed, and stays in its conversation.
package messages
