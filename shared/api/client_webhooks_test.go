package api

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestEachWebhookMethodCallsItsPath(t *testing.T) {
	t.Parallel()
	s := &script{replies: []reply{{status: 200, body: `{"code":200,"message":"success","data":{"id":"a","secret":"whsec_x","events":["task.failed"]}}`}}}
	c, ctx := s.client(), t.Context()
	endpoint, err := c.AddEndpoint(ctx, EndpointRequest{URL: "https://a.test/", Events: []string{"task.failed"}})
	require.NoError(t, err)
	require.Equal(t, EndpointResponse{ID: "a", Secret: "whsec_x", Events: []string{"task.failed"}}, endpoint)
	require.Equal(t, `{"url":"https://a.test/","events":["task.failed"]}`, s.calls[0].body)
	for _, call := range []func(context.Context, string) (EndpointResponse, error){c.Endpoint, c.EnableEndpoint, c.DisableEndpoint, c.RotateEndpoint} {
		got, err := call(ctx, "a/b")
		require.NoError(t, err)
		require.Equal(t, endpoint, got)
	}
	for _, call := range []func(context.Context) (SigningSecretResponse, error){c.SigningSecret, c.RotateSigningSecret} {
		got, err := call(ctx)
		require.NoError(t, err)
		require.Equal(t, "whsec_x", got.Secret)
	}
	for _, call := range []func(context.Context, string) (DeliveryResponse, error){c.Delivery, c.ResendDelivery} {
		got, err := call(ctx, "d")
		require.NoError(t, err)
		require.Equal(t, "a", got.ID)
	}
	s.replies = []reply{{status: 204}}
	require.NoError(t, c.DeleteEndpoint(ctx, "a"))
	const endpoints, secret, deliveries = "/api/v1/webhooks/endpoints", "/api/v1/webhooks/signing-secret", "/api/v1/webhooks/deliveries"
	require.Equal(t, []string{
		"POST " + endpoints, "GET " + endpoints + "/a%2Fb", "POST " + endpoints + "/a%2Fb/enable", "POST " + endpoints + "/a%2Fb/disable",
		"POST " + endpoints + "/a%2Fb/rotate-secret", "GET " + secret, "POST " + secret + "/rotate",
		"GET " + deliveries + "/d", "POST " + deliveries + "/d/resend", "DELETE " + endpoints + "/a",
	}, s.paths())
}

func TestListSendsItsFilter(t *testing.T) {
	t.Parallel()
	s := &script{replies: []reply{{status: 200, body: `{"code":200,"message":"success","data":{"items":[{"id":"a"}],"next_after":"a"}}`}}}
	c, ctx := s.client(), t.Context()
	_, err := c.Endpoints(ctx, EndpointsRequest{})
	require.NoError(t, err)
	admin, limit := ID(9007199254740993), 2
	page, err := c.Endpoints(ctx, EndpointsRequest{CallerID: &admin, Limit: &limit, After: "a&b"})
	require.NoError(t, err)
	require.Equal(t, Page[EndpointResponse]{Items: []EndpointResponse{{ID: "a"}}, NextAfter: "a"}, page)
	deliveries, err := c.Deliveries(ctx, DeliveriesRequest{State: "failed", EndpointID: "e", TaskID: "t", CallerID: new(ID)})
	require.NoError(t, err)
	require.Equal(t, "a", deliveries.Items[0].ID)
	require.Equal(t, []string{
		"GET /api/v1/webhooks/endpoints", "GET /api/v1/webhooks/endpoints?after=a%26b&caller_id=9007199254740993&limit=2",
		"GET /api/v1/webhooks/deliveries?caller_id=0&endpoint_id=e&state=failed&task_id=t",
	}, s.paths())
}

func TestWebhookCallIsRepeatedOnlyIfHarmless(t *testing.T) {
	t.Parallel()
	success := reply{status: 200, body: `{"code":200,"message":"success","data":{}}`}
	for name, c := range map[string]struct {
		call  func(*Client, context.Context) error
		tries int
	}{
		"enable":  {func(c *Client, ctx context.Context) error { _, err := c.EnableEndpoint(ctx, "a"); return err }, 3},
		"disable": {func(c *Client, ctx context.Context) error { _, err := c.DisableEndpoint(ctx, "a"); return err }, 3},
		"delete":  {func(c *Client, ctx context.Context) error { return c.DeleteEndpoint(ctx, "a") }, 3},
		"add": {func(c *Client, ctx context.Context) error {
			_, err := c.AddEndpoint(ctx, EndpointRequest{})
			return err
		}, 1},
		"rotate an endpoint":        {func(c *Client, ctx context.Context) error { _, err := c.RotateEndpoint(ctx, "a"); return err }, 1},
		"rotate the signing secret": {func(c *Client, ctx context.Context) error { _, err := c.RotateSigningSecret(ctx); return err }, 1},
		"resend":                    {func(c *Client, ctx context.Context) error { _, err := c.ResendDelivery(ctx, "d"); return err }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &script{replies: []reply{resetReply, busyReply, success}}
				err := c.call(s.client(), t.Context())
				require.Len(t, s.calls, c.tries)
				require.Equal(t, c.tries == 1, err != nil)
				require.False(t, errors.As(err, new(*Error)), "without a response it is unknown whether the call took effect")
			})
		})
	}
}
