package task

import "net/url"

// MaskURL leaves only the scheme and the host of a URL: the rest may be a secret, as that of a robot of a chat group is.
func MaskURL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "****"
	}
	return u.Scheme + "://" + u.Host + "/****"
}

// HostOf returns the host of a URL, "" if it is none, for logs and texts: the rest may be a secret.
func HostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Host
}
