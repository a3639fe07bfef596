package task

import (
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
)

// MaskURL masks all of a URL except its scheme and host: the rest may be a secret, such as the key of a chat robot. If
// text is not a URL with a host, all of it is masked.
func MaskURL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "****"
	}
	return u.Scheme + "://" + u.Host + "/****"
}

var urlField = regexp.MustCompile(`("url":\s*)("(?:[^"\\]|\\.)*")`)

// MaskURLFields applies MaskURL to each field "url" of a valid JSON text.
func MaskURLFields(text []byte) []byte {
	return urlField.ReplaceAllFunc(text, func(field []byte) []byte {
		parts := urlField.FindSubmatch(field)
		var plain string
		_ = json.Unmarshal(parts[2], &plain)      // valid
		masked, _ := json.Marshal(MaskURL(plain)) // a string always encodes
		return slices.Concat(parts[1], masked)
	})
}

// HostOf returns the host of a URL for logs and error texts, since the rest may be a secret. If text is not a URL with
// a host, it returns "".
func HostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Host
}
