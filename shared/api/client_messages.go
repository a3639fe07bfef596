package api

import (
	"context"
	"net/url"
)

// SubmitMessage submits one reliable message. The call is repeated like Send with a key, because a message with the same
// ClientMsgID is saved once.
func (c *Client) SubmitMessage(ctx context.Context, r MessageRequest) (MessageAck, error) {
	return post[MessageAck](ctx, c, "/api/v1/messages", r, repeatable)
}

// Message reads a message of this caller.
func (c *Client) Message(ctx context.Context, serverMsgID string) (MessageResponse, error) {
	return get[MessageResponse](ctx, c, "/api/v1/messages/"+url.PathEscape(serverMsgID))
}

// MessageByKey reads the message that this caller submitted with clientMsgID. from is the From of the message; "" is the
// caller's name. The error's code is not_found if the message was not saved.
func (c *Client) MessageByKey(ctx context.Context, clientMsgID, from string) (MessageResponse, error) {
	return getFor[MessageResponse](ctx, c, "/api/v1/messages/by-key/"+url.PathEscape(clientMsgID), MessageByKeyRequest{From: from})
}

// ConfirmMessage confirms that this caller has received and processed a message. Unless the caller is an admin, the message
// must be to the user of the caller's name, or to a subject that matches the caller's Receives. Confirming twice is
// harmless.
func (c *Client) ConfirmMessage(ctx context.Context, serverMsgID string) error {
	return c.ConfirmDelivery(ctx, serverMsgID, "")
}

// ConfirmDelivery is ConfirmMessage for a message to a URL of this caller: token is the attribute confirmtoken of the
// CloudEvent that the URL received.
func (c *Client) ConfirmDelivery(ctx context.Context, serverMsgID, token string) error {
	return c.post(ctx, "/api/v1/messages/"+url.PathEscape(serverMsgID)+"/received", ReceivedRequest{Token: token}, nil, repeatable)
}

// Conversation reads one page of the messages between two users, newest first, and how far each user has read. The
// caller must be one of the two users, or an admin or viewer.
func (c *Client) Conversation(ctx context.Context, r ConversationRequest) (ConversationResponse, error) {
	return getFor[ConversationResponse](ctx, c, "/api/v1/messages", r)
}

// Peers reads one page of the users who wrote to a user, sorted by their newest message, the newest first. After a
// StreamGap, Peers shows which conversations to read.
func (c *Client) Peers(ctx context.Context, r PeersRequest) (Page[Peer], error) {
	return getFor[Page[Peer]](ctx, c, "/api/v1/messages/peers", r)
}

// MarkRead marks how far a user has read a conversation. The mark never moves back, so a repeat is harmless.
func (c *Client) MarkRead(ctx context.Context, r ReadRequest) error {
	return c.post(ctx, "/api/v1/messages/read", r, nil, repeatable)
}
