package api

import (
	"context"
	"net/url"
)

// SubmitMessage hands over one reliable message. It is repeated as Send is: the
// same message under the same ClientMsgID is saved once.
func (c *Client) SubmitMessage(ctx context.Context, r MessageRequest) (MessageAck, error) {
	return post[MessageAck](ctx, c, "/api/v1/messages", r, repeatable)
}

// Message reads a message of this caller.
func (c *Client) Message(ctx context.Context, serverMsgID string) (MessageResponse, error) {
	return get[MessageResponse](ctx, c, "/api/v1/messages/"+url.PathEscape(serverMsgID))
}

// MessageByKey reads the message that this caller saved under clientMsgID, from
// itself when from is "". The error's code is not_found when no such call was
// committed.
func (c *Client) MessageByKey(ctx context.Context, clientMsgID, from string) (MessageResponse, error) {
	path := "/api/v1/messages/by-key/" + url.PathEscape(clientMsgID)
	if from != "" {
		path += "?" + url.Values{"from": {from}}.Encode()
	}
	return get[MessageResponse](ctx, c, path)
}

// ConfirmMessage confirms that this caller has received a message and done what it
// asks for: a message to the user of this name, or to a subject that the caller was
// granted. Confirming twice is harmless.
func (c *Client) ConfirmMessage(ctx context.Context, serverMsgID string) error {
	_, err := post[struct{}](ctx, c, "/api/v1/messages/"+url.PathEscape(serverMsgID)+"/received", ReceivedRequest{}, repeatable)
	return err
}

// ConfirmDelivery is ConfirmMessage for a message that came to a URL of this
// caller: token is the attribute confirmtoken of the delivery.
func (c *Client) ConfirmDelivery(ctx context.Context, serverMsgID, token string) error {
	_, err := post[struct{}](ctx, c, "/api/v1/messages/"+url.PathEscape(serverMsgID)+"/received", ReceivedRequest{Token: token}, repeatable)
	return err
}

// Conversation lists what two users sent to each other, newest first, one page,
// and how far each of them has read. The caller must be one of them, or an admin.
func (c *Client) Conversation(ctx context.Context, r ConversationRequest) (ConversationResponse, error) {
	return getFor[ConversationResponse](ctx, c, "/api/v1/messages", r)
}

// Peers lists those who wrote to a user, one page: those whose newest message is
// newest first. It is where to begin after a gap (StreamGap).
func (c *Client) Peers(ctx context.Context, r PeersRequest) (Page[Peer], error) {
	return getFor[Page[Peer]](ctx, c, "/api/v1/messages/peers", r)
}

// MarkRead marks how far a user has read a conversation. It never goes back, so
// a repeat is harmless.
func (c *Client) MarkRead(ctx context.Context, r ReadRequest) error {
	_, err := post[struct{}](ctx, c, "/api/v1/messages/read", r, repeatable)
	return err
}
