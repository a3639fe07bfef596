package api

import (
	"bytes"
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/retry"
)

// Client calls a Sendonce service. A failed call is repeated only if the repeat is harmless; the comment of a method says
// when its repeat could do harm. All methods may be called from any goroutine. The fields must not be changed after the
// first call.
type Client struct {
	BaseURL  string // "https://sms.example.com", with or without a slash at its end
	User     string
	Password string
	HTTP     *http.Client // nil = http.DefaultClient; a redirect is an *Error in any case
	Tries    int          // tries of one call, the first included; 0 = 6, 1 = never repeat
}

const (
	defaultTries      = 6
	firstPause        = 100 * time.Millisecond
	longestPause      = 5 * time.Second
	longestRetryAfter = 24 * time.Hour // a longer Retry-After counts as this
	callTimeout       = time.Minute    // of one try; longer than the longest wait of a claim
	idleConns         = 100            // by default, Go keeps only 2 idle connections to one host

	// maxResponse is the limit of a response in bytes: at least four times the largest response. A page has at most 200
	// messages with 64 KiB of data and a few KiB of other fields, less than 16 MiB. The response to a batch of 1,000 items
	// repeats parts of the request, of which each item has at most 13 KiB.
	maxResponse = 64 << 20
)

// NewClient makes a client with a connection pool of its own and a timeout of one minute for each try of a call.
func NewClient(baseURL, user, password string) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = idleConns, idleConns
	return &Client{BaseURL: baseURL, User: user, Password: password, HTTP: &http.Client{
		Transport:     transport,
		Timeout:       callTimeout,
		CheckRedirect: followNone,
	}}
}

// followNone makes an HTTP client return a redirect and not follow it. A redirected POST would arrive as a GET.
func followNone(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// httpClient returns a copy of the HTTP client that follows no redirects.
func (c *Client) httpClient() *http.Client {
	client := *cmp.Or(c.HTTP, http.DefaultClient)
	client.CheckRedirect = followNone
	return &client
}

// NewKey makes an idempotency key of 130 random bits. Use one key per message, not per try, and store it so that it
// survives a restart.
func NewKey() string { return crand.Text() }

// Error is a response with a status other than 2xx. Every method returns it as *Error; any other error means that no
// valid response was received.
type Error struct {
	Status     int    // the HTTP status
	Code       string // a stable word, such as "stale_claim"; "" = a proxy or gateway responded, not the service
	Message    string
	Fields     []Field       // every bad input field
	RetryAfter time.Duration // from the header Retry-After; 0 = none
}

// Error returns the status, the code, the message and each bad field.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(strconv.Itoa(e.Status))
	if e.Code != "" {
		b.WriteString(" " + e.Code)
	}
	b.WriteString(": " + e.Message)
	for _, f := range e.Fields {
		b.WriteString("; " + f.Field + " " + f.Message)
	}
	return b.String()
}

// Result is the response to one item of a batch: Data, or Err if the service refused the item.
type Result[T any] struct {
	Data     T
	Replayed bool // an earlier request with the same idempotency key has submitted the task in Data
	Err      *Error
}

// Send submits one message. With an idempotency key, the call is repeated if there was no valid response, after a 429,
// 502, 503 or 504, and while another call with the key is in progress; each repeat returns the same task. Without a key
// the call is tried once, because a repeat could send the message twice.
func (c *Client) Send(ctx context.Context, r SendRequest) (SendResponse, error) {
	return post[SendResponse](ctx, c, "/api/v1/sms/send", r, repeatIf(r.IdempotencyKey != ""))
}

// SendBatch submits up to 1,000 messages and returns one result per message, in the same order. The call is repeated
// like Send if every message has a key, and else tried once.
func (c *Client) SendBatch(ctx context.Context, messages []SendRequest) ([]Result[SendResponse], error) {
	keyed := !slices.ContainsFunc(messages, func(m SendRequest) bool { return m.IdempotencyKey == "" })
	return postBatch[SendResponse](ctx, c, "/api/v1/sms/send/batch", "", messages, repeatIf(keyed))
}

// Task reads a task of this caller.
func (c *Client) Task(ctx context.Context, taskID string) (TaskResponse, error) {
	return get[TaskResponse](ctx, c, "/api/v1/sms/task/"+url.PathEscape(taskID))
}

// TaskByKey reads the task that this caller submitted with a key. If the response to the submission was lost, TaskByKey
// shows whether the submission was accepted: if not, the error's code is not_found.
func (c *Client) TaskByKey(ctx context.Context, key string) (TaskResponse, error) {
	return get[TaskResponse](ctx, c, "/api/v1/sms/by-key/"+url.PathEscape(key))
}

// Cancel cancels a scheduled or pending task, which no sender has at the moment. Cancelling twice is harmless.
func (c *Client) Cancel(ctx context.Context, taskID string) (TaskResponse, error) {
	return post[TaskResponse](ctx, c, "/api/v1/sms/task/"+url.PathEscape(taskID)+"/cancel", nil, repeatable)
}

// Claim claims tasks. The call is repeated only if no connection could be made, or after a 503 with Retry-After. After
// such a 503, or if the response was lost, tasks may be claimed although this caller does not have them: their leases
// end without a report.
func (c *Client) Claim(ctx context.Context, r ClaimRequest) ([]ClaimedTask, error) {
	return post[[]ClaimedTask](ctx, c, "/api/v1/sms/tasks/pending", r, ifBusy)
}

// Extend extends the lease of a claimed task and may mark it as sending.
// Extending twice is harmless.
func (c *Client) Extend(ctx context.Context, taskID string, r ExtendRequest) (ExtendResponse, error) {
	return post[ExtendResponse](ctx, c, "/api/v1/sms/tasks/"+url.PathEscape(taskID)+"/extend", r, repeatable)
}

// Report reports the outcome of one attempt. The call is repeated only with a ClaimID, which makes a second report
// harmless. Without a ClaimID, a repeat could apply to a newer claim of the same app.
func (c *Client) Report(ctx context.Context, r ReportRequest) (ReportResponse, error) {
	return post[ReportResponse](ctx, c, "/api/v1/sms/report", r, repeatIf(r.ClaimID != 0))
}

// ReportBatch reports up to 1,000 outcomes of one app and returns one result per report, in the same order. The
// call is repeated if every report has a ClaimID.
func (c *Client) ReportBatch(ctx context.Context, appID string, reports []ReportRequest) ([]Result[ReportResponse], error) {
	fenced := !slices.ContainsFunc(reports, func(r ReportRequest) bool { return r.ClaimID == 0 })
	return postBatch[ReportResponse](ctx, c, "/api/v1/sms/report/batch", appID, reports, repeatIf(fenced))
}

// Statistics counts tasks. The caller must be an admin or viewer.
func (c *Client) Statistics(ctx context.Context) (StatisticsResponse, error) {
	return get[StatisticsResponse](ctx, c, "/api/v1/admin/statistics")
}

// batchResponse is BatchResponse with the type of its items' data.
type batchResponse[T any] struct {
	Items []struct {
		BatchItem
		Data T `json:"data"` // hides BatchItem.Data
	} `json:"items"`
}

// postBatch posts a batch and returns one result per item. appID is "" if the request has no app_id.
func postBatch[T, I any](ctx context.Context, c *Client, path, appID string, items []I, mayRepeat repeatPolicy) ([]Result[T], error) {
	body := struct {
		AppID string            `json:"app_id,omitempty"`
		Items []json.RawMessage `json:"items"`
	}{appID, make([]json.RawMessage, len(items))}
	for i, item := range items {
		var err error
		if body.Items[i], err = json.Marshal(item); err != nil {
			return nil, fmt.Errorf("encode item %d: %w", i, err)
		}
	}
	response, err := post[batchResponse[T]](ctx, c, path, body, mayRepeat)
	if err != nil {
		return nil, err
	}
	if len(response.Items) != len(items) {
		return nil, fmt.Errorf("POST %s: the response has %d results for %d items", path, len(response.Items), len(items))
	}
	results := make([]Result[T], len(items))
	for i, item := range response.Items {
		results[i] = Result[T]{Data: item.Data, Replayed: item.Replayed}
		if item.Code/100 != 2 {
			results[i].Err = &Error{Status: item.Code, Code: item.Error, Message: item.Message, Fields: item.Fields}
		}
	}
	return results, nil
}

// noResponseError means that no valid response to a call was received. The call may have taken effect or not.
type noResponseError struct{ error }

func (e noResponseError) Unwrap() error { return e.error }

// repeatPolicy reports whether a call may be repeated after err.
type repeatPolicy func(err error) bool

func repeatIf(safe bool) repeatPolicy {
	if safe {
		return repeatable
	}
	return func(error) bool { return false }
}

// repeatable is the policy of calls that have the same effect however often they are made.
func repeatable(err error) bool {
	refused, ok := errors.AsType[*Error](err)
	if !ok {
		return errors.As(err, new(noResponseError))
	}
	switch refused.Status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return refused.Code == "idempotency_in_flight"
}

// ifBusy is the policy of Claim: no connection could be made, or the response is a 503 with Retry-After. After such a
// 503, the service has hardly ever executed the call.
func ifBusy(err error) bool {
	if refused, ok := errors.AsType[*Error](err); ok {
		return refused.Status == http.StatusServiceUnavailable && refused.RetryAfter > 0
	}
	return ifNotConnected(err)
}

// ifNotConnected is the policy of calls that are repeated only if it is certain that the service did not execute them.
func ifNotConnected(err error) bool {
	network, ok := errors.AsType[*net.OpError](err)
	return ok && network.Op == "dial"
}

func get[T any](ctx context.Context, c *Client, path string) (data T, err error) {
	err = c.call(ctx, http.MethodGet, path, nil, &data, repeatable)
	return data, err
}

func post[T any](ctx context.Context, c *Client, path string, body any, mayRepeat repeatPolicy) (data T, err error) {
	err = c.post(ctx, path, body, &data, mayRepeat)
	return data, err
}

func (c *Client) post(ctx context.Context, path string, body, data any, mayRepeat repeatPolicy) (err error) {
	var raw []byte
	if body != nil {
		if raw, err = json.Marshal(body); err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
	}
	return c.call(ctx, http.MethodPost, path, raw, data, mayRepeat)
}

// call tries until a try succeeds, c.Tries tries have failed, or mayRepeat refuses the error. If ctx would end during
// the pause before the next try, call returns the error of the last try at once. data is nil for a method without data.
func (c *Client) call(ctx context.Context, method, path string, body []byte, data any, mayRepeat repeatPolicy) error {
	for try := 1; ; try++ {
		err := c.try(ctx, method, path, body, data)
		if err == nil || try >= cmp.Or(c.Tries, defaultTries) || !mayRepeat(err) || !pause(ctx, pauseAfter(try, err)) {
			return err
		}
	}
}

// pauseAfter returns the pause after a failed try: the longer of Retry-After and a pause that doubles, with jitter.
func pauseAfter(try int, err error) time.Duration {
	d := retry.Delay(firstPause, longestPause, try)
	if refused, ok := errors.AsType[*Error](err); ok {
		d = max(d, refused.RetryAfter)
	}
	return retry.Jitter(d)
}

// pause waits for d. It returns false if ctx ends first, and at once if the deadline of ctx is before the end of d.
func pause(ctx context.Context, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Client) try(ctx context.Context, method, path string, body []byte, data any) error {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.BaseURL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.SetBasicAuth(c.User, c.Password)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.httpClient().Do(req)
	if err != nil {
		return noResponseError{err}
	}
	defer res.Body.Close()
	raw, err := readBody(res)
	if err != nil {
		return noResponseError{fmt.Errorf("%s %s: read the response: %w", method, path, err)}
	}
	if res.StatusCode/100 != 2 {
		return refusal(res, raw)
	}
	if res.StatusCode == http.StatusNoContent && data == nil {
		return nil
	}
	if err := decodeResponse(res.StatusCode, raw, data); err != nil {
		return noResponseError{fmt.Errorf("%s %s: status %d, but not a response of the service: %w", method, path, res.StatusCode, err)}
	}
	return nil
}

func readBody(res *http.Response) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxResponse+1))
	if err == nil && len(raw) > maxResponse {
		return nil, fmt.Errorf("the response is larger than %d MiB", maxResponse>>20)
	}
	return raw, err
}

// decodeResponse decodes the data of a response with a status 2xx. A body that is not an envelope with this status is
// from a proxy or gateway, and does not prove that the service has executed the call.
func decodeResponse(status int, raw []byte, data any) error {
	var envelope struct {
		Code int             `json:"code"`
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(raw, &envelope); err != nil {
		return err
	}
	if envelope.Code != status {
		return fmt.Errorf("its code is %d", envelope.Code)
	}
	if data == nil {
		return nil
	}
	return json.Unmarshal(envelope.Data, data)
}

// refusal returns the error of a response with a status other than 2xx. A body that is not an envelope is ignored: it
// is from a proxy or gateway, not from the service.
func refusal(res *http.Response, raw []byte) *Error {
	e := &Error{Status: res.StatusCode, Message: http.StatusText(res.StatusCode)}
	if location := res.Header.Get("Location"); res.StatusCode/100 == 3 && location != "" {
		e.Message += ": it redirects to " + location + "; use the final URL as BaseURL"
	}
	var envelope Envelope
	if json.Unmarshal(raw, &envelope) == nil && envelope.Error != "" {
		e.Code, e.Message, e.Fields = envelope.Error, envelope.Message, envelope.Fields
	}
	e.RetryAfter = retry.After(res.Header, time.Now(), longestRetryAfter)
	return e
}
