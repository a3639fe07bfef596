package inbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/retry"
)

const (
	confirmTimeout = 20 * time.Second // of one Confirm, so that it does not block the next delivery for long
	tryTimeout     = 10 * time.Second
	minPause       = 100 * time.Millisecond
	maxPause       = 5 * time.Second
)

// Confirmer confirms received messages to a Sendonce service. Its methods are safe for concurrent use,
// unless a field is changed meanwhile.
type Confirmer struct {
	BaseURL  string // "https://messages.example.com", with or without a final slash
	User     string
	Password string
	Consumer string       // the same as User; only an admin may name another consumer
	HTTP     *http.Client // nil = http.DefaultClient
}

// Confirm posts the id, and the token if there is one, until the service returns 204. It waits between tries: longer
// after each, and at least Retry-After. It gives up when ctx ends, after 20 seconds, or after a permanent error (a
// status other than 204, 408, 425, 429 and 5xx). Confirming twice is harmless.
func (c *Confirmer) Confirm(ctx context.Context, m Message) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	body, err := json.Marshal(struct {
		Consumer string `json:"consumer"`
		Token    string `json:"token,omitempty"`
	}{c.Consumer, m.ConfirmToken})
	if err != nil {
		return err
	}
	address := strings.TrimSuffix(c.BaseURL, "/") + "/api/v1/messages/" + url.PathEscape(m.ID) + "/received"
	for try := 1; ; try++ {
		temporary, retryAfter, err := c.try(ctx, address, body)
		if err == nil || !temporary {
			return err
		}
		select {
		case <-time.After(retry.Jitter(max(retry.Delay(minPause, maxPause, try), retryAfter))):
		case <-ctx.Done():
			return err
		}
	}
}

// try posts once. temporary reports whether to retry after the error. retryAfter is from the service, 0 = none.
func (c *Confirmer) try(ctx context.Context, address string, body []byte) (temporary bool, retryAfter time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return false, 0, err
	}
	req.SetBasicAuth(c.User, c.Password)
	req.Header.Set("Content-Type", "application/json")
	res, err := cmp.Or(c.HTTP, http.DefaultClient).Do(req)
	if err != nil {
		return true, 0, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNoContent {
		return false, 0, nil
	}
	response, err := io.ReadAll(io.LimitReader(res.Body, 500))
	if err != nil {
		return true, 0, err
	}
	retryAfter = retry.After(res.Header, time.Now(), confirmTimeout)
	switch res.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		temporary = true
	default:
		temporary = res.StatusCode/100 == 5
	}
	return temporary, retryAfter, fmt.Errorf("the service returned %s: %s", res.Status, response)
}
