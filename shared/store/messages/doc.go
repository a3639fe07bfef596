// Package messages stores reliable messages and the conversations of users.
//
// # Sending
//
// Relay publishes while it holds the locks of the rows of message_live, so it needs no lease: a relay that dies has
// changed nothing. Each caller gets an equal part of a batch, divided equally among the NATS streams to which the
// caller has due messages. If a stream accepts nothing, Relay pauses it; package store describes these pauses.
//
// A POST to a URL takes longer than a lock should be held. So ClaimPosts moves next_at to the end of a lease, and
// SettlePosts counts a failure only if next_at is still the same; a success always counts. Messages are taken in turn
// from each account (a caller with the callers that it created) and from each host of a caller, within InFlightLimits.
// ClaimPosts and SettlePosts serve many callers at once, so they skip locked rows. The function deliver settles the
// posts again whose rows were locked.
//
// # Accepted messages
//
// SaveAccepted saves messages in the order of their stream. One transaction commits the messages, their
// sequence numbers in the stream (accepted_messages: from then on they may be purged) and the events that acknowledge
// them to their senders. A message has the same
// primary key whether it comes through the stream or through Submit, so it is saved once.
//
// A message may be delivered before it is saved. RecordDelivered and SaveAccepted both write the row of
// accepted_messages with the message's id, so the later one sees the row of the earlier one. The row is deleted when the
// message is purged from the stream, with two exceptions. The row of a message that cannot be stored is deleted a day
// after the message was rejected; that of a message that was never saved, after 30 days.
//
// # Archived messages
//
// An archived message can still be confirmed, and stays in its conversation.
package messages
