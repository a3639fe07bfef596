package api

import "context"

const subscribePath = "/api/v1/subscribe/"

// Subscribe submits one WeChat subscribe message. The call is repeated like Send with a key, because a message is sent
// once, however often it is submitted. With OnUnknown "fail" the call is tried once: if the outcome of such a message is
// unknown, the message counts as failed, and a repeat would send it again.
func (c *Client) Subscribe(ctx context.Context, r SubscribeRequest) (SubscribeResponse, error) {
	return post[SubscribeResponse](ctx, c, subscribePath+"send", r, repeatIf(r.OnUnknown != "fail"))
}

// RecordSubscribe claims a message that the caller will send itself. If the response is Skipped, the caller must not
// send the message. The call is repeated only if no connection could be made: after a lost response, and rarely after a 503,
// the message is claimed, and a repeat would be Skipped. Then SubscribeSent shows whether it was sent.
func (c *Client) RecordSubscribe(ctx context.Context, r SubscribeRecordRequest) (SubscribeRecordResponse, error) {
	return post[SubscribeRecordResponse](ctx, c, subscribePath+"record", r, ifNotConnected)
}

// SubscribeStatus reports the outcome of a recorded message. With the same ClaimID, a second report is harmless.
func (c *Client) SubscribeStatus(ctx context.Context, id ID, r SubscribeStatusRequest) (SubscribeStatusResponse, error) {
	return post[SubscribeStatusResponse](ctx, c, subscribePath+id.String()+"/status", r, repeatable)
}

// SubscribeSent reports whether a message was sent.
func (c *Client) SubscribeSent(ctx context.Context, r SubscribeSentRequest) (SubscribeSentResponse, error) {
	return getFor[SubscribeSentResponse](ctx, c, subscribePath+"sent", r)
}

// SubscribeLogs reads one page of the messages of a business event, sorted by id.
func (c *Client) SubscribeLogs(ctx context.Context, r SubscribeLogsRequest) (Page[SubscribeLogResponse], error) {
	return getFor[Page[SubscribeLogResponse]](ctx, c, subscribePath+"logs", r)
}

// SubscribeFailures reads one page of the messages that failed, newest first.
func (c *Client) SubscribeFailures(ctx context.Context, r SubscribeFailuresRequest) (Page[SubscribeLogResponse], error) {
	return getFor[Page[SubscribeLogResponse]](ctx, c, subscribePath+"failures", r)
}

// SubscribeStatistics counts messages by template type.
func (c *Client) SubscribeStatistics(ctx context.Context, r SubscribeStatisticsRequest) (SubscribeStatisticsResponse, error) {
	return getFor[SubscribeStatisticsResponse](ctx, c, subscribePath+"statistics", r)
}

// SubscribeLog reads a message with its newest sends.
func (c *Client) SubscribeLog(ctx context.Context, id ID) (SubscribeDetailResponse, error) {
	return c.SubscribeHistory(ctx, id, SubscribeDetailRequest{})
}

// SubscribeHistory reads a message with one page of its sends, newest first.
func (c *Client) SubscribeHistory(ctx context.Context, id ID, r SubscribeDetailRequest) (SubscribeDetailResponse, error) {
	return getFor[SubscribeDetailResponse](ctx, c, subscribePath+id.String(), r)
}

// ResendSubscribe sends a message again; the caller must be an admin. The call is tried once, because a repeat could
// send the message once more.
func (c *Client) ResendSubscribe(ctx context.Context, id ID, r SubscribeResendRequest) (SubscribeResponse, error) {
	return post[SubscribeResponse](ctx, c, subscribePath+id.String()+"/resend", r, repeatIf(false))
}
