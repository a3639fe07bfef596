package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

const (
	endpointsPath     = "/api/v1/webhooks/endpoints"
	signingSecretPath = "/api/v1/webhooks/signing-secret"
	deliveriesPath    = "/api/v1/webhooks/deliveries"
)

// AddEndpoint registers a URL for the events of this caller. Only this call returns the new endpoint's secret. The secret
// of a robot is never returned. The call is tried once, because a repeat could register the URL twice.
func (c *Client) AddEndpoint(ctx context.Context, r EndpointRequest) (EndpointResponse, error) {
	return post[EndpointResponse](ctx, c, endpointsPath, r, repeatIf(false))
}

// Endpoints reads one page of the registered URLs, sorted by id.
func (c *Client) Endpoints(ctx context.Context, r EndpointsRequest) (Page[EndpointResponse], error) {
	return getFor[Page[EndpointResponse]](ctx, c, endpointsPath, r)
}

// Endpoint reads a registered URL.
func (c *Client) Endpoint(ctx context.Context, id string) (EndpointResponse, error) {
	return get[EndpointResponse](ctx, c, endpointPath(id, ""))
}

// DeleteEndpoint deletes an endpoint and ends its pending deliveries. The error's code is not_found if it was already
// deleted, for example by an earlier try whose response was lost.
func (c *Client) DeleteEndpoint(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, endpointPath(id, ""), nil, nil, repeatable)
}

// EnableEndpoint enables an endpoint again; its pending deliveries continue. Enabling twice is harmless.
func (c *Client) EnableEndpoint(ctx context.Context, id string) (EndpointResponse, error) {
	return post[EndpointResponse](ctx, c, endpointPath(id, "/enable"), nil, repeatable)
}

// DisableEndpoint stops the deliveries to an endpoint. Disabling twice is harmless.
func (c *Client) DisableEndpoint(ctx context.Context, id string) (EndpointResponse, error) {
	return post[EndpointResponse](ctx, c, endpointPath(id, "/disable"), nil, repeatable)
}

// RotateEndpoint replaces the secret of an endpoint. Only this call returns the new secret. For 24 hours, the previous
// secret signs, too. The call is tried once, because a repeat would end the previous secret at once. For a robot, the
// error's code is conflict.
func (c *Client) RotateEndpoint(ctx context.Context, id string) (EndpointResponse, error) {
	return post[EndpointResponse](ctx, c, endpointPath(id, "/rotate-secret"), nil, repeatIf(false))
}

// SigningSecret reads the secret that signs the calls to this caller's callback_urls and this caller's messages to
// URLs.
func (c *Client) SigningSecret(ctx context.Context) (SigningSecretResponse, error) {
	return get[SigningSecretResponse](ctx, c, signingSecretPath)
}

// RotateSigningSecret replaces this caller's signing secret, like RotateEndpoint.
func (c *Client) RotateSigningSecret(ctx context.Context) (SigningSecretResponse, error) {
	return post[SigningSecretResponse](ctx, c, signingSecretPath+"/rotate", nil, repeatIf(false))
}

// Deliveries reads one page of the deliveries without their payloads, newest first.
func (c *Client) Deliveries(ctx context.Context, r DeliveriesRequest) (Page[DeliveryResponse], error) {
	return getFor[Page[DeliveryResponse]](ctx, c, deliveriesPath, r)
}

// Delivery reads a delivery with its payload.
func (c *Client) Delivery(ctx context.Context, id string) (DeliveryResponse, error) {
	return get[DeliveryResponse](ctx, c, deliveriesPath+"/"+url.PathEscape(id))
}

// ResendDelivery starts a delivery again, whatever its state is. The call is tried once, because a repeat could deliver
// the event once more.
func (c *Client) ResendDelivery(ctx context.Context, id string) (DeliveryResponse, error) {
	return post[DeliveryResponse](ctx, c, deliveriesPath+"/"+url.PathEscape(id)+"/resend", nil, repeatIf(false))
}

// ResendFailedDeliveries starts failed deliveries again, at most 500. Repeat the call while More is true.
func (c *Client) ResendFailedDeliveries(ctx context.Context, r DeliveriesResendRequest) (DeliveriesResendResponse, error) {
	return post[DeliveriesResendResponse](ctx, c, deliveriesPath+"/resend", r, repeatable)
}

// TestEndpoint sends an event sendonce.test.v1 to an endpoint. The call is tried once, because a repeat could send a
// second event.
func (c *Client) TestEndpoint(ctx context.Context, id string) (DeliveryResponse, error) {
	return post[DeliveryResponse](ctx, c, endpointPath(id, "/test"), nil, repeatIf(false))
}

func endpointPath(id, action string) string { return endpointsPath + "/" + url.PathEscape(id) + action }

// getFor makes a GET with the fields of filter, a struct, as query string.
func getFor[T any](ctx context.Context, c *Client, path string, filter any) (data T, err error) {
	query, err := queryOf(filter)
	if err != nil {
		return data, err
	}
	return get[T](ctx, c, path+query)
}

// queryOf returns the JSON fields of filter, a struct of scalars, as a query string with its question mark, or "" if
// no field is set.
func queryOf(filter any) (string, error) {
	raw, err := json.Marshal(filter)
	if err != nil {
		return "", fmt.Errorf("encode the query: %w", err)
	}
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber() // keeps all digits of ids
	if err := decoder.Decode(&fields); err != nil {
		return "", fmt.Errorf("encode the query: %w", err)
	}
	values := url.Values{}
	for name, value := range fields {
		values.Set(name, fmt.Sprint(value))
	}
	if len(values) == 0 {
		return "", nil
	}
	return "?" + values.Encode(), nil
}
