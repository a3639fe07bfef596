package api_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// hasValidSignature reports whether one of the signatures is valid. It computes the signature independently, as in the
// specification of Standard Webhooks.
func hasValidSignature(secret, id, timestamp, signatures string, body []byte) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return false
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	return slices.Contains(strings.Fields(signatures), "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}

// FuzzVerifyWebhook checks that VerifyWebhook accepts what SignWebhook signed, and any other headers and body only with
// a valid signature.
func FuzzVerifyWebhook(f *testing.F) {
	f.Add(knownID, strconv.Itoa(knownSeconds), knownSignature, []byte(knownBody))
	f.Add("", "", "", []byte(nil))
	f.Add("a.b", "-1", "v1,", []byte("x"))
	f.Add("a", "18446744073709551616", "v1a,abc v2,def v1,%%%", []byte("\x00"))
	f.Fuzz(func(t *testing.T, id, timestamp, signature string, body []byte) {
		at := time.Unix(knownSeconds, 0)
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {timestamp}, "Webhook-Signature": {signature}}
		good := http.Header{}
		signErr := api.SignWebhook(good, id, at, body, knownSecret)
		if api.VerifyWebhook(h, body, at, knownSecret) == nil && !hasValidSignature(knownSecret, id, timestamp, signature, body) {
			t.Fatal("verified without a valid signature")
		}
		if signErr != nil {
			return
		}
		if err := api.VerifyWebhook(good, body, at, knownSecret); err != nil {
			t.Fatal(err)
		}
		good.Set("Webhook-Id", id+"x")
		if api.VerifyWebhook(good, body, at, knownSecret) == nil {
			t.Fatal("verified with another id")
		}
		good.Set("Webhook-Id", id)
		if api.VerifyWebhook(good, append(body[:len(body):len(body)], 'x'), at, knownSecret) == nil {
			t.Fatal("verified with another body")
		}
	})
}
