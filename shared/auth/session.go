package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// SessionTime is how long a session of the console lasts.
const SessionTime = 12 * time.Hour

// Session lets a client that has logged in make further calls without the password. The client keeps
// the session, encrypted by package fn. A session ends when it expires, when the caller is revoked, or when the
// caller's token is replaced. The built-in admin's session ends when it expires or the admin's password changes.
type Session struct {
	Name    string    `json:"n"`
	Secret  []byte    `json:"s"` // the SHA-256 of the caller's token, or adminSecret
	Expires time.Time `json:"e"`
}

// SessionOf returns a session of a caller that was just authenticated with this password.
func (au *Authenticator) SessionOf(name, password string, expires time.Time) Session {
	secret := au.adminSecret()
	if !sameText(name, au.username) {
		secret = sha256.Sum256([]byte(password))
	}
	return Session{Name: name, Secret: secret[:], Expires: expires}
}

// Resume returns the caller of a session. The error is ErrCredentials if the session has ended. It has the code
// task.CodeServerBusy if the caller is not in the cache and the database is unavailable. The built-in admin's session needs
// no database.
func (au *Authenticator) Resume(ctx context.Context, s Session) (callers.Caller, error) {
	if !time.Now().Before(s.Expires) || len(s.Secret) != sha256.Size {
		return callers.Caller{}, ErrCredentials
	}
	if sameText(s.Name, au.username) {
		if secret := au.adminSecret(); subtle.ConstantTimeCompare(secret[:], s.Secret) != 1 {
			return callers.Caller{}, ErrCredentials
		}
		return builtInAdmin(s.Name), nil
	}
	caller, _, err := au.Callers.Current(ctx, s.Name)
	switch {
	case task.CodeOf(err) == task.CodeNotFound:
		return callers.Caller{}, ErrCredentials
	case err != nil:
		return callers.Caller{}, errors.Join(task.Busy("the service is busy, try again"), err)
	case caller.Revoked || !caller.MatchesToken([sha256.Size]byte(s.Secret)):
		return callers.Caller{}, ErrCredentials
	}
	return caller, nil
}

// adminSecret changes when the setting of the built-in admin's password, or of its hash, changes.
func (au *Authenticator) adminSecret() [sha256.Size]byte {
	if au.hash != nil {
		return sha256.Sum256(fmt.Appendf(nil, "hash %d %x %x", au.hash.iterations, au.hash.salt, au.hash.sum))
	}
	return sha256.Sum256([]byte("password " + au.password))
}
