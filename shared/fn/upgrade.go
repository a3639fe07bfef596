package fn

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/text"
)

// isUpgrade reports whether a client wants a WebSocket.
func isUpgrade(h http.Header) bool {
	return hasToken(h, "Connection", "upgrade") && hasToken(h, "Upgrade", "websocket")
}

// hasToken reports whether the list in a header has a token. Upper and lower case are the same.
func hasToken(h http.Header, name, token string) bool {
	return slices.ContainsFunc(h.Values(name), func(line string) bool {
		return slices.ContainsFunc(strings.Split(line, ","), func(item string) bool {
			return strings.EqualFold(strings.TrimSpace(item), token)
		})
	})
}

// checkUpgrade refuses malformed handshakes. It also refuses the handshakes of web pages of origins that
// are not allowed, because a browser sends the credentials of its user with the handshake.
func (req *request) checkUpgrade(origins []string) error {
	h := req.r.Header
	var bad decode.BadFields
	bad.When(!req.r.ProtoAtLeast(1, 1), "Upgrade", "must be sent over HTTP/1.1")
	if h.Get("Sec-WebSocket-Version") != "13" {
		req.w.Header().Set("Sec-WebSocket-Version", "13")
		bad.When(true, "Sec-WebSocket-Version", "must be 13")
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(h.Get("Sec-WebSocket-Key")))
	bad.When(err != nil || len(key) != 16 || len(h.Values("Sec-WebSocket-Key")) != 1, "Sec-WebSocket-Key", "must be 16 bytes in base64")
	if len(bad) > 0 {
		return task.Invalid(bad)
	}
	origin := h.Get("Origin")
	if origin == "" || slices.ContainsFunc(origins, func(o string) bool { return strings.EqualFold(o, origin) }) {
		return nil
	}
	if u, err := url.Parse(origin); err == nil && u.Host != "" && strings.EqualFold(u.Host, req.r.Host) {
		return nil
	}
	return task.Refuse(task.CodeForbidden, fmt.Sprintf("pages of the origin %s may not open a socket here", text.Cut(text.Printable(origin, unicode.ReplacementChar), 64)))
}
