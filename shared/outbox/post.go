package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/retry"
)

const (
	postTimeout   = 10 * time.Second
	maxResponse   = 1 << 20 // bytes read of a response
	maxRetryAfter = time.Hour
)

type verdict int

const (
	verdictStopped     verdict = iota // the forwarder was stopped before the response
	verdictAccepted                   // the service has the message
	verdictRefused                    // the service refuses this message
	verdictLater                      // this message failed; other messages may succeed
	verdictUnavailable                // the service is unavailable for all messages
)

// outcome is the result of one POST. err is nil only for verdictAccepted.
type outcome struct {
	verdict    verdict
	err        error
	retryAfter time.Duration // from the service; 0 = none
}

// post sends the message with this id (its client_msg_id) and body.
func post(ctx context.Context, service *api.Client, id, body string) outcome {
	postCtx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	status, header, raw, err := roundTrip(postCtx, service, body)
	switch {
	case err != nil && ctx.Err() != nil:
		return outcome{verdict: verdictStopped, err: err}
	case err != nil:
		return outcome{verdict: verdictUnavailable, err: err}
	default:
		return outcomeOf(id, status, header, raw)
	}
}

func roundTrip(ctx context.Context, service *api.Client, body string) (status int, header http.Header, raw []byte, err error) {
	url := strings.TrimSuffix(service.BaseURL, "/") + "/api/v1/messages"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	req.SetBasicAuth(service.User, service.Password)
	req.Header.Set("Content-Type", "application/json")
	res, err := cmp.Or(service.HTTP, http.DefaultClient).Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer res.Body.Close()
	if res.Request.Method != http.MethodPost {
		return 0, nil, nil, fmt.Errorf("%s redirects to %s, which turned the POST into a %s", url, res.Request.URL.Host, res.Request.Method)
	}
	raw, err = io.ReadAll(io.LimitReader(res.Body, maxResponse))
	if err != nil {
		return 0, nil, nil, fmt.Errorf("read the response: %w", err)
	}
	return res.StatusCode, res.Header, raw, nil
}

// outcomeOf interprets the response to the message id. A response without the service's envelope came from a proxy, and so did
// a 200 or 202 that acknowledges another message. Neither proves that this message was accepted.
func outcomeOf(id string, status int, header http.Header, raw []byte) outcome {
	var ack api.MessageAck
	envelope := api.Envelope{Data: &ack}
	fromService := json.Unmarshal(raw, &envelope) == nil && envelope.Code == status && (status >= 300 || ack.ClientMsgID == id)
	if fromService && (status == http.StatusOK || status == http.StatusAccepted) {
		return outcome{verdict: verdictAccepted}
	}
	failure := &api.Error{Status: status, Message: "not a response of the service to this message"}
	if fromService {
		failure.Code, failure.Message, failure.Fields = envelope.Error, envelope.Message, envelope.Fields
	}
	failure.RetryAfter = retry.After(header, time.Now(), maxRetryAfter)
	o := outcome{verdict: verdictUnavailable, err: failure, retryAfter: failure.RetryAfter}
	if fromService {
		o.verdict = verdictOf(failure)
	}
	return o
}

// verdictOf returns verdictRefused only for a status that is about the message. Wrong credentials (401) and a wrong
// address (404, 405) affect every message. A 429 without fields is about the caller. A 429 that names a field of the
// message means that this sender has sent too much to one user.
func verdictOf(failure *api.Error) verdict {
	switch failure.Status {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return verdictRefused
	case http.StatusConflict, http.StatusInternalServerError:
		return verdictLater
	case http.StatusTooManyRequests:
		if len(failure.Fields) > 0 {
			return verdictLater
		}
	}
	return verdictUnavailable
}
