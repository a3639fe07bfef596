package fn

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// tokenTime is how long a token in a URL is accepted. The time is short because URLs stay in logs and in the
// histories of browsers.
const tokenTime = time.Minute

// tokenAAD is the additional authenticated data of an encrypted token, so that the token is accepted only for this
// path.
func tokenAAD(path string) string { return "token in an address " + path }

// An encrypted token is base64; its + and / have another meaning in a URL.
var (
	toURL   = strings.NewReplacer("+", "-", "/", "_")
	fromURL = strings.NewReplacer("-", "+", "_", "/")
)

// TokenInURL marks a route that also accepts, in place of the header Authorization, a token (see Call.Token) in the
// parameter token: an EventSource cannot send the header. For a WebSocket the token is not accepted. The route must not
// change anything.
func (r Route) TokenInURL() Route { r.token = true; return r }

// Token returns a token that authenticates requests for path as this caller, for a minute (see Route.TokenInURL).
func (c *Call) Token(path string) (token string, expires time.Time, err error) {
	keys := c.env.sessionKeys
	name, password, ok := c.r.BasicAuth()
	switch {
	case keys.IsEmpty():
		return "", time.Time{}, errors.New("there are no tokens: SENDONCE_ENCRYPTION_KEYS is not set")
	case !ok:
		return "", time.Time{}, auth.ErrCredentials
	}
	expires = time.Now().Add(tokenTime)
	text, err := json.Marshal(c.env.auth.SessionOf(name, password, expires))
	if err != nil {
		return "", time.Time{}, err
	}
	token, err = keys.Encrypt(tokenAAD(path), string(text))
	return toURL.Replace(token), expires, err
}

// callerOfToken returns the present state of the caller of a token for the path of this request.
func (req *request) callerOfToken(ctx context.Context, token string) (callers.Caller, error) {
	text, err := req.env.sessionKeys.Decrypt(tokenAAD(req.r.URL.Path), fromURL.Replace(token))
	var s auth.Session
	if err != nil || json.Unmarshal([]byte(text), &s) != nil {
		return callers.Caller{}, errToken
	}
	caller, err := req.env.auth.Resume(ctx, s)
	if errors.Is(err, auth.ErrCredentials) {
		return callers.Caller{}, errToken
	}
	return caller, err
}

var errToken = task.Refuse(auth.CodeUnauthenticated, "the token is wrong, is for another path, has expired, or its caller was revoked: get a new one")
