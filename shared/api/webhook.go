package api

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Webhooks are signed according to the Standard Webhooks specification: the signature covers the other two headers and
// the body.
const (
	webhookID        = "webhook-id"
	webhookTimestamp = "webhook-timestamp"
	webhookSignature = "webhook-signature"

	secretPrefix   = "whsec_"
	secretBytes    = 32
	minSecretBytes = 24
	maxSecretBytes = 64

	signatureVersion = "v1,"
	toleranceSeconds = 5 * 60
)

// The errors of VerifyWebhook, for errors.Is. The first three are errors of the request: respond with a 4xx status.
// ErrWebhookSecret is an error in the settings of the receiver.
var (
	ErrWebhookHeaders   = errors.New("a webhook header is missing or malformed")
	ErrWebhookTime      = errors.New("the webhook's time is more than 5 minutes from now")
	ErrWebhookSignature = errors.New("no webhook signature matches: it was made with another secret, or the body was changed")
	ErrWebhookSecret    = errors.New("not a webhook secret")
)

// NewWebhookSecret makes a secret of 256 random bits, as "whsec_" and base64.
func NewWebhookSecret() string {
	key := make([]byte, secretBytes)
	rand.Read(key) // never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(key)
}

// SignWebhook sets webhook-id, webhook-timestamp (at, in Unix seconds) and webhook-signature, with one signature per
// secret. The id must be the same in all tries of one webhook, and must not contain a full stop. If SignWebhook returns
// an error, h is unchanged; a bad secret is ErrWebhookSecret.
func SignWebhook(h http.Header, id string, at time.Time, body []byte, secrets ...string) error {
	if !validWebhookID(id) {
		return fmt.Errorf("%w: the id is empty or has a full stop", ErrWebhookHeaders)
	}
	timestamp := strconv.FormatInt(at.Unix(), 10)
	signatures, err := webhookSignatures(id, timestamp, body, secrets)
	if err != nil {
		return err
	}
	h.Set(webhookID, id)
	h.Set(webhookTimestamp, timestamp)
	h.Set(webhookSignature, strings.Join(signatures, " "))
	return nil
}

// VerifyWebhook returns nil if one of the v1 signatures in h was made with one of the secrets for exactly this body,
// and if the timestamp is at most 5 minutes before or after now. It ignores signatures of other versions. Pass body as
// it was received, before any decoding. Until its timestamp is 5 minutes old, a webhook can be replayed: store its
// webhook-id, and ignore a repeat.
func VerifyWebhook(h http.Header, body []byte, now time.Time, secrets ...string) error {
	id, timestamp := h.Get(webhookID), h.Get(webhookTimestamp)
	expected, err := webhookSignatures(id, timestamp, body, secrets)
	if err != nil {
		return err
	}
	if !validWebhookID(id) {
		return fmt.Errorf("%w: %s is empty or has a full stop", ErrWebhookHeaders, webhookID)
	}
	if err := checkWebhookTime(timestamp, now); err != nil {
		return err
	}
	v1Signatures := 0
	for signature := range strings.FieldsSeq(strings.Join(h.Values(webhookSignature), " ")) {
		if !strings.HasPrefix(signature, signatureVersion) {
			continue
		}
		v1Signatures++
		for _, e := range expected {
			if hmac.Equal([]byte(signature), []byte(e)) {
				return nil
			}
		}
	}
	if v1Signatures == 0 {
		return fmt.Errorf("%w: %s has no v1 signature", ErrWebhookHeaders, webhookSignature)
	}
	return ErrWebhookSignature
}

// validWebhookID refuses a full stop, because full stops separate the signed parts: if the id had one, the start of the
// body could be taken for the time.
func validWebhookID(id string) bool { return id != "" && !strings.Contains(id, ".") }

func checkWebhookTime(timestamp string, now time.Time) error {
	seconds, err := strconv.ParseUint(timestamp, 10, 63)
	if err != nil {
		return fmt.Errorf("%w: %s is not a time in Unix seconds", ErrWebhookHeaders, webhookTimestamp)
	}
	switch age := now.Unix() - int64(seconds); {
	case age > toleranceSeconds:
		return fmt.Errorf("%w: it is %d s old", ErrWebhookTime, age)
	case age < -toleranceSeconds:
		return fmt.Errorf("%w: it is %d s ahead, compare the clocks", ErrWebhookTime, -age)
	}
	return nil
}

// webhookSignatures returns one signature per secret, in the same order.
func webhookSignatures(id, timestamp string, body []byte, secrets []string) ([]string, error) {
	if len(secrets) == 0 {
		return nil, fmt.Errorf("%w: none is given", ErrWebhookSecret)
	}
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		key, err := webhookKey(secret)
		if err != nil {
			return nil, fmt.Errorf("secret %d of %d: %w", i+1, len(secrets), err)
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		signatures[i] = signatureVersion + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return signatures, nil
}

// webhookKey decodes a secret. Its error does not contain the secret.
func webhookKey(secret string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(key) < minSecretBytes || len(key) > maxSecretBytes {
		return nil, fmt.Errorf("%w: it must be %s and the base64 of %d to %d bytes", ErrWebhookSecret, secretPrefix, minSecretBytes, maxSecretBytes)
	}
	return key, nil
}
