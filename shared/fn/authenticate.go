package fn

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"time"

	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// errCredentials refuses a call without valid credentials.
var errCredentials = task.Refuse(codeUnauthenticated, "valid Basic credentials are needed")

// authenticate returns the caller of the Basic credentials, and limits failed logins. A
// call for a list is one that the role of lists answers.
func (req *request) authenticate(ctx context.Context, list bool) (callers.Caller, error) {
	name, password, ok := req.r.BasicAuth()
	if !ok || !task.ValidUser(name) && !sameText(name, req.env.Config.Username) {
		return callers.Caller{}, errCredentials
	}
	a, err := req.env.logins.begin(name, password, req.call.SourceIP, req.start)
	if err != nil {
		return callers.Caller{}, err
	}
	caller, err := req.env.verify(ctx, name, password, list, a)
	return caller, a.end(ctx, err)
}

// verify returns the caller of the name and password. The built-in admin never touches the
// database, so an operator gets in while it is away. Where the admin's password is given
// by its hash, a failure takes the time of computing a hash, whatever the name.
func (e *Env) verify(ctx context.Context, name, password string, list bool, a *loginAttempt) (callers.Caller, error) {
	admin := sameText(name, e.Config.Username)
	if admin && e.adminHash == nil && e.Config.Password != "" && sameText(password, e.Config.Password) {
		return builtInAdmin(name), nil
	}
	if !admin {
		caller, refused := e.verifyCaller(ctx, name, password, list, a)
		if task.CodeOf(refused) != codeUnauthenticated {
			return caller, refused
		}
	}
	if e.adminHash == nil || a.repeated {
		return callers.Caller{}, errCredentials
	}
	start := time.Now()
	right, waited := e.adminHash.matches(ctx, a, password, admin)
	a.hashing = time.Since(start)
	switch {
	case waited != nil:
		a.spent = false // it is not refunded
		return callers.Caller{}, waited
	case !right:
		return callers.Caller{}, errCredentials
	}
	return builtInAdmin(name), nil
}

func builtInAdmin(name string) callers.Caller {
	return callers.Caller{Name: name, Roles: []string{string(Admin)}}
}

// verifyCaller is verify for all names but the built-in admin's.
func (e *Env) verifyCaller(ctx context.Context, name, password string, list bool, a *loginAttempt) (callers.Caller, error) {
	hash := sha256.Sum256([]byte(password)) // also of names that nobody has
	limited := !a.spent && !a.proven
	if limited && !e.callers.has(name) {
		if !a.known {
			e.deferred.add(name, a.address, e.logins.nameFound)
			return callers.Caller{}, errCredentials
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, failureTime) // the next call finds the result
		defer cancel()
	}
	caller, err := e.callers.byName(ctx, name, list)
	switch {
	case task.CodeOf(err) == task.CodeNotFound, err != nil && limited:
		return callers.Caller{}, errCredentials
	case err != nil:
		return callers.Caller{}, errors.Join(Busy("the service is busy, try again"), err)
	}
	if !caller.Knows(hash) || caller.Revoked {
		return callers.Caller{}, errCredentials
	}
	return caller, nil
}

// sameText compares in a time that depends neither on where the texts differ nor on how
// long they are.
func sameText(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
