package api

import (
	"context"
)

const subscribePath = "/api/v1/subscribe/"

// Subscribe orders one WeChat subscribe message. It is repeated as Send is with a
// key: of all orders for one message one is sent, and a repeat is skipped. With
// OnUnknown fail it is tried once, as such a message that may have been delivered
// counts as failed, and the repeat would send it again.
func (c *Client) Subscribe(ctx context.Context, r SubscribeRequest) (SubscribeResponse, error) {
	return post[SubscribeResponse](ctx, c, subscribePath+"send", r, repeatIf(r.OnUnknown != "fail"))
}

// RecordSubscribe claims a message that the caller is about to send itself; when
// the response is Skipped it must not. It is repeated as Claim is, as a repeat after
// a lost response would find the message claimed.
func (c *Client) RecordSubscribe(ctx context.Context, r SubscribeRecordRequest) (SubscribeRecordResponse, error) {
	return post[SubscribeRecordResponse](ctx, c, subscribePath+"record", r, claimable)
}

// SubscribeStatus reports the outcome of a recorded message. The claim makes the same
// report again harmless.
func (c *Client) SubscribeStatus(ctx context.Context, id ID, r SubscribeStatusRequest) (SubscribeStatusResponse, error) {
	return post[SubscribeStatusResponse](ctx, c, subscribePath+id.String()+"/status", r, repeatable)
}

// SubscribeSent reports whether a message was sent.
func (c *Client) SubscribeSent(ctx context.Context, r SubscribeSentRequest) (SubscribeSentResponse, error) {
	return getFor[SubscribeSentResponse](ctx, c, subscribePath+"sent", r)
}

// SubscribeLogs lists the messages of one business event by id, one page.
func (c *Client) SubscribeLogs(ctx context.Context, r SubscribeLogsRequest) (Page[SubscribeLogResponse], error) {
	return list[SubscribeLogResponse](ctx, c, subscribePath+"logs", r)
}

// SubscribeFailures lists the messages that failed, newest first, one page.
func (c *Client) SubscribeFailures(ctx context.Context, r SubscribeFailuresRequest) (Page[SubscribeLogResponse], error) {
	return list[SubscribeLogResponse](ctx, c, subscribePath+"failures", r)
}

// SubscribeStatistics counts messages by type of template.
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

// ResendSubscribe sends a message again by hand; the caller must be an admin. It is
// tried once: a repeat could send once more what has failed or arrived meanwhile.
func (c *Client) ResendSubscribe(ctx context.Context, id ID, r SubscribeResendRequest) (SubscribeResponse, error) {
	return post[SubscribeResponse](ctx, c, subscribePath+id.String()+"/resend", r, repeatIf(false))
}
