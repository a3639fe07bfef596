// Package messages stores reliable messages and the conversations of users.
//
// # Sending
//
// Relay publishes while it holds the locks of the rows of message_live, so it needs no lease: if a relay dies, its
// transaction is rolled back, and the next relay publishes the same messages with the same MsgIDs. Each caller gets an
// equal part of a batch, divided equally among the NATS streams to which the caller has due messages. If a stream
// accepts nothing, Relay pauses the stream; package store describes these pauses.
//
// A POST to a URL takes longer than a lock should be held. So ClaimPosts moves next_at to the end of a lease, and
// SettlePosts counts a failure only if the message has not changed since the claim: next_at is still the same. A success
// always counts. Messages are taken in turn from each account (a caller with the callers that it created) and from each
// host of a caller, within InFlightLimits. ClaimPosts and SettlePosts serve many callers at once, so they skip locked
// rows. If SettlePosts skipped the row of a post, the function deliver settles this post again.
//
// # Accepted messages
//
// SaveAccepted saves messages in the order of their stream. One transaction commits the messages, their
// sequence numbers in the stream (accepted_messages) and the events that acknowledge the messages to their senders.
// After this commit, the messages may be removed from the stream. A message has the same primary key whether it comes
// through the stream or through Submit, so it is saved once.
//
// A message may be delivered before it is saved. RecordDelivered and SaveAccepted both write the row of
// accepted_messages with the message's id, so the later call sees what the earlier call wrote. The row is deleted when
// the message is removed from the stream, with two exceptions. The row of a message that can never be saved (a poisoned
// message) stays for at least a day after the message was rejected. The row of a message that was delivered but not
// saved stays until 30 days after the delivery.
//
// # Archived messages
//
// An archived message can still be confirmed, and stays in its conversation.
package messages
