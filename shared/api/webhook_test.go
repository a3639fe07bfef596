package api_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

// A receiver verifies the body as received, handles each webhook-id once, and returns 2xx.
func ExampleVerifyWebhook() {
	secret := api.NewWebhookSecret() // shown when the endpoint was registered
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "the body cannot be read", http.StatusBadRequest)
			return
		}
		if err := api.VerifyWebhook(r.Header, body, time.Now(), secret); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		fmt.Println("handle once:", r.Header.Get("webhook-id"), string(body))
		w.WriteHeader(http.StatusNoContent)
	}))
	defer receiver.Close()

	body := `{"type":"sendonce.task.succeeded.v1"}`
	req, err := http.NewRequest(http.MethodPost, receiver.URL, strings.NewReader(body))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := api.SignWebhook(req.Header, "018c24d2-2100-7a5e-9b1f-3c6d5e4f7a81-1042", time.Now(), []byte(body), secret); err != nil {
		fmt.Println(err)
		return
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer res.Body.Close()
	fmt.Println(res.StatusCode)
	// Output:
	// handle once: 018c24d2-2100-7a5e-9b1f-3c6d5e4f7a81-1042 {"type":"sendonce.task.succeeded.v1"}
	// 204
}

// A test vector that the libraries of Standard Webhooks share.
const (
	knownSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	knownID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	knownSeconds   = 1614265330
	knownBody      = `{"test": 2432232314}`
	knownSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

func signed(id, timestamp string, signatures ...string) http.Header {
	h := http.Header{}
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", timestamp)
	for _, s := range signatures {
		h.Add("webhook-signature", s)
	}
	return h
}

func secretOfLength(n int) string {
	key := make([]byte, n)
	rand.Read(key)
	return "whsec_" + base64.StdEncoding.EncodeToString(key)
}

func TestSignWebhookMatchesTestVector(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	require.NoError(t, api.SignWebhook(h, knownID, time.Unix(knownSeconds, 999_999_999), []byte(knownBody), knownSecret))
	require.Equal(t, signed(knownID, strconv.Itoa(knownSeconds), knownSignature), h)
}

func TestNewWebhookSecretIs256RandomBits(t *testing.T) {
	t.Parallel()
	one, two := api.NewWebhookSecret(), api.NewWebhookSecret()
	require.NotEqual(t, one, two)
	encoded, ok := strings.CutPrefix(one, "whsec_")
	require.True(t, ok)
	key, err := base64.StdEncoding.DecodeString(encoded)
	require.NoError(t, err)
	require.Len(t, key, 32)
}

func TestEitherSecretVerifiesDuringRotation(t *testing.T) {
	t.Parallel()
	oldSecret, newSecret, now := api.NewWebhookSecret(), api.NewWebhookSecret(), time.Now()
	both, onlyNew := http.Header{}, http.Header{} // signed with both secrets, and only with the new one
	require.NoError(t, api.SignWebhook(both, "id", now, []byte("body"), newSecret, oldSecret))
	require.NoError(t, api.SignWebhook(onlyNew, "id", now, []byte("body"), newSecret))

	require.NoError(t, api.VerifyWebhook(both, []byte("body"), now, oldSecret))
	require.NoError(t, api.VerifyWebhook(both, []byte("body"), now, newSecret))
	require.NoError(t, api.VerifyWebhook(onlyNew, []byte("body"), now, oldSecret, newSecret))
	require.ErrorIs(t, api.VerifyWebhook(onlyNew, []byte("body"), now, oldSecret), api.ErrWebhookSignature)
}

func TestVerifyWebhook(t *testing.T) {
	t.Parallel()
	const other = "v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc="
	at := strconv.Itoa(knownSeconds)
	good := signed(knownID, at, knownSignature)
	tests := map[string]struct {
		header http.Header
		body   string
		later  time.Duration
		want   error
		text   string // part of the error
	}{
		"the test vector":                  {header: good},
		"5 minutes old":                    {header: good, later: 5 * time.Minute},
		"5 minutes ahead":                  {header: good, later: -5 * time.Minute},
		"too old":                          {header: good, later: 5*time.Minute + time.Second, want: api.ErrWebhookTime, text: "301 s old"},
		"too far ahead":                    {header: good, later: -5*time.Minute - time.Second, want: api.ErrWebhookTime, text: "301 s ahead"},
		"another body":                     {header: good, body: `{"test":2432232314}`, want: api.ErrWebhookSignature},
		"another id":                       {header: signed("msg_2", at, knownSignature), want: api.ErrWebhookSignature},
		"another time":                     {header: signed(knownID, "1614265331", knownSignature), want: api.ErrWebhookSignature},
		"another signature":                {header: signed(knownID, at, other), want: api.ErrWebhookSignature},
		"a truncated signature":            {header: signed(knownID, at, knownSignature[:20]), want: api.ErrWebhookSignature},
		"an empty signature":               {header: signed(knownID, at, "v1,"), want: api.ErrWebhookSignature},
		"the valid one among others":       {header: signed(knownID, at, other+" v2,abc  "+knownSignature+" "+other)},
		"the valid one in a second header": {header: signed(knownID, at, other, knownSignature)},
		"the valid one with version v1a":   {header: signed(knownID, at, "v1a"+knownSignature[2:]), want: api.ErrWebhookHeaders, text: "no v1 signature"},
		"the valid one without a version":  {header: signed(knownID, at, knownSignature[3:]), want: api.ErrWebhookHeaders, text: "no v1 signature"},
		"no signature":                     {header: signed(knownID, at), want: api.ErrWebhookHeaders, text: "webhook-signature"},
		"no id":                            {header: signed("", at, knownSignature), want: api.ErrWebhookHeaders, text: "webhook-id"},
		"no time":                          {header: signed(knownID, "", knownSignature), want: api.ErrWebhookHeaders, text: "webhook-timestamp"},
		"a time that is not a number":      {header: signed(knownID, "2021-02-25", knownSignature), want: api.ErrWebhookHeaders, text: "webhook-timestamp"},
		"a time with a sign":               {header: signed(knownID, "+"+at, knownSignature), want: api.ErrWebhookHeaders, text: "webhook-timestamp"},
		"the largest time":                 {header: signed(knownID, "9223372036854775807", knownSignature), want: api.ErrWebhookTime, text: "ahead"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := []byte(knownBody)
			if tt.body != "" {
				body = []byte(tt.body)
			}
			err := api.VerifyWebhook(tt.header, body, time.Unix(knownSeconds, 0).Add(tt.later), knownSecret)
			require.ErrorIs(t, err, tt.want)
			if tt.text != "" {
				require.ErrorContains(t, err, tt.text)
			}
		})
	}
}

// The signed text is id.time.body. With a full stop in the id, the start of the body could be taken
// for the time.
func TestWebhookIDMustNotContainFullStop(t *testing.T) {
	t.Parallel()
	h, secret := http.Header{}, api.NewWebhookSecret()
	require.NoError(t, api.SignWebhook(h, "id", time.Unix(1000, 0), []byte("9000.5"), secret))
	h.Set("webhook-id", "id.1000")
	h.Set("webhook-timestamp", "9000")
	require.ErrorIs(t, api.VerifyWebhook(h, []byte("5"), time.Unix(9000, 0), secret), api.ErrWebhookHeaders)
	require.ErrorIs(t, api.SignWebhook(http.Header{}, "id.1000", time.Unix(9000, 0), []byte("5"), secret), api.ErrWebhookHeaders)
}

func TestInvalidWebhookSecretIsRefused(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]string{
		"empty":        "",
		"no prefix":    strings.TrimPrefix(knownSecret, "whsec_"),
		"not base64":   "whsec_not-base64-at-all-not-base64-at-all",
		"too short":    secretOfLength(23),
		"too long":     secretOfLength(65),
		"a public key": "whpk_" + strings.TrimPrefix(secretOfLength(32), "whsec_"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := http.Header{}
			err := api.SignWebhook(h, "id", time.Now(), nil, knownSecret, bad)
			require.ErrorIs(t, err, api.ErrWebhookSecret)
			require.ErrorContains(t, err, "secret 2 of 2")
			require.Empty(t, h)
			if bad != "" {
				require.NotContains(t, err.Error(), bad)
			}
			require.ErrorIs(t, api.VerifyWebhook(signed(knownID, strconv.Itoa(knownSeconds), knownSignature), []byte(knownBody), time.Unix(knownSeconds, 0), knownSecret, bad), api.ErrWebhookSecret)
		})
	}
	for _, n := range []int{24, 64} {
		require.NoError(t, api.SignWebhook(http.Header{}, "id", time.Now(), nil, secretOfLength(n)))
	}
	require.ErrorIs(t, api.SignWebhook(http.Header{}, "id", time.Now(), nil), api.ErrWebhookSecret)
	require.ErrorIs(t, api.VerifyWebhook(http.Header{}, nil, time.Now()), api.ErrWebhookSecret)
}
