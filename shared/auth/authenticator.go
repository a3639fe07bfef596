// Package auth authenticates callers by name and password, and limits failed logins. It caches callers, so that most
// calls need no query.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// ErrCredentials refuses a call without valid credentials.
var ErrCredentials = task.Refuse(CodeUnauthenticated, "valid Basic credentials are needed")

// Authenticator authenticates the calls of one process. It is safe for concurrent use.
type Authenticator struct {
	Callers *Callers

	username, password string        // of the built-in admin
	hash               *PasswordHash // nil if the password itself is given
	limiter            *limiter
	deferred           deferredLookups
}

// Source reads callers; callers.Store is one.
type Source interface {
	// ByName returns a caller. forList is true if the caller calls a route for lists, which has connections of its own.
	ByName(ctx context.Context, name string, forList bool) (callers.Caller, error)
	// Existing returns those of the names that are names of callers.
	Existing(ctx context.Context, names []string) (existing []string, err error)
}

// New returns an Authenticator of the built-in admin and of the callers of source. username is the built-in admin's. If
// hash is not nil, it is the hash of the built-in admin's password, and password is not used. onFound is called each
// time source.ByName has returned a caller; onFound may be nil.
func New(username, password string, hash *PasswordHash, source Source, onFound func(), log *slog.Logger) *Authenticator {
	cache := newCallers(source.ByName)
	cache.onFound = onFound
	return &Authenticator{
		Callers: cache, username: username, password: password, hash: hash, limiter: newLimiter(),
		deferred: deferredLookups{findExisting: source.Existing, onExisting: cache.noteExisting, log: log},
	}
}

// Authenticate returns the caller of a login. The error is ErrCredentials, has the code CodeTooManyAttempts or
// task.CodeServerBusy, or is the error of ctx.
func (au *Authenticator) Authenticate(ctx context.Context, login Login) (callers.Caller, error) {
	admin := sameText(login.Name, au.username)
	if !admin && !task.ValidUser(login.Name) {
		return callers.Caller{}, ErrCredentials
	}
	a := au.limiter.begin(login)
	caller, err := au.verify(ctx, login, admin, a)
	return caller, a.end(ctx, err)
}

// verify returns the caller of the name and password. The built-in admin is not looked up in the
// database, so an operator can log in while the database is unavailable. If the admin's password is
// given by its hash, PasswordHash.matches also gets the wrong passwords of other names, so that the
// time of a failure does not show which name is the admin's.
func (au *Authenticator) verify(ctx context.Context, login Login, admin bool, a *attempt) (callers.Caller, error) {
	if !admin {
		caller, err := au.verifyCaller(ctx, login, a)
		if task.CodeOf(err) != CodeUnauthenticated {
			return caller, err
		}
	}
	if a.retryAfter > 0 && utf8.RuneCountInString(login.Password) < strongPassword {
		return callers.Caller{}, ErrCredentials // without comparing the password with the admin's
	}
	if au.hash == nil {
		if admin && au.password != "" && sameText(login.Password, au.password) {
			return builtInAdmin(login.Name), nil
		}
		return callers.Caller{}, ErrCredentials
	}
	if a.repeated {
		return callers.Caller{}, ErrCredentials
	}
	start := time.Now()
	right, err := au.hash.matches(ctx, a, login.Password, admin)
	a.hashTime = time.Since(start)
	switch {
	case err != nil:
		a.charged = false // so that end does not refund the charge
		return callers.Caller{}, err
	case !right:
		return callers.Caller{}, ErrCredentials
	}
	return builtInAdmin(login.Name), nil
}

func builtInAdmin(name string) callers.Caller {
	return callers.Caller{Name: name, Roles: []string{"admin"}}
}

// verifyCaller is verify without the built-in admin.
func (au *Authenticator) verifyCaller(ctx context.Context, login Login, a *attempt) (callers.Caller, error) {
	hash := sha256.Sum256([]byte(login.Password)) // also for unknown names, so that all names take the same time
	seen := au.Callers.seen(login.Name)
	limited := !a.charged && !seen.caller.MatchesToken(hash) // over a limit, and not with the last known token
	if limited && !seen.fresh {
		if !seen.exists {
			au.deferred.add(login.Name, a.address)
			return callers.Caller{}, ErrCredentials
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, failureTime) // the query goes on after that, for the next call
		defer cancel()
	}
	caller, err := au.Callers.byName(ctx, login.Name, login.ForList)
	switch {
	case task.CodeOf(err) == task.CodeNotFound, err != nil && limited:
		return callers.Caller{}, ErrCredentials
	case err != nil:
		if ctx.Err() != nil && !seen.exists {
			a.charged = false // so that end does not refund the charge: otherwise clients that leave could cause any number of queries
		}
		return callers.Caller{}, errors.Join(task.Busy("the service is busy, try again"), err)
	}
	if !caller.MatchesToken(hash) || caller.Revoked {
		return callers.Caller{}, ErrCredentials
	}
	return caller, nil
}

// sameText compares two texts. The time does not show where the texts differ or whether they have the
// same length.
func sameText(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
