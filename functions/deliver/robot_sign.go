package deliver

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"strconv"
	"time"
)

// signDingTalk adds the signature to the query of the URL. DingTalk refuses timestamps that are more than an hour old.
func signDingTalk(secret string, at time.Time, to string, _ map[string]any) (string, error) {
	u, err := url.Parse(to)
	if err != nil {
		return "", err
	}
	timestamp := strconv.FormatInt(at.UnixMilli(), 10)
	if u.RawQuery != "" {
		u.RawQuery += "&"
	}
	u.RawQuery += url.Values{"timestamp": {timestamp}, "sign": {hmacBase64(secret, timestamp+"\n"+secret)}}.Encode()
	return u.String(), nil
}

// signFeishu adds the signature to the body. Feishu refuses timestamps that are more than an hour old. As Feishu defines it, the
// key of the HMAC is the timestamp and the secret, and the signed text is empty.
func signFeishu(secret string, at time.Time, to string, body map[string]any) (string, error) {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	body["timestamp"], body["sign"] = timestamp, hmacBase64(timestamp+"\n"+secret, "")
	return to, nil
}

// hmacBase64 returns the base64 of the HMAC-SHA256 of a text.
func hmacBase64(key, text string) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(text))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
