// Package authtest has callers for tests without a database.
package authtest

import (
	"context"
	"crypto/sha256"
	"slices"

	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// Source implements auth.Source with a function instead of a database.
type Source func(ctx context.Context, name string, forList bool) (callers.Caller, error)

// ByName implements auth.Source.
func (find Source) ByName(ctx context.Context, name string, forList bool) (callers.Caller, error) {
	return find(ctx, name, forList)
}

// Existing implements auth.Source. It returns the names for which find returns no error.
func (find Source) Existing(ctx context.Context, names []string) (existing []string, err error) {
	for _, name := range names {
		if _, err := find(ctx, name, false); err == nil {
			existing = append(existing, name)
		}
	}
	return existing, nil
}

// Callers returns a Source of callers with these names, and of the revoked caller "gone". All have this token, and the
// only role of each is its name. A lookup of "outage" fails as if the database were unavailable.
func Callers(token string, names ...string) Source {
	return func(_ context.Context, name string, _ bool) (callers.Caller, error) {
		caller := callers.Caller{ID: 7, Name: name, Proof: callers.TokenProof(nil, sha256.Sum256([]byte(token))), Roles: []string{name}}
		switch {
		case slices.Contains(names, name):
			return caller, nil
		case name == "gone":
			caller.Revoked = true
			return caller, nil
		case name == "outage":
			return callers.Caller{}, context.DeadlineExceeded
		}
		return callers.Caller{}, task.Refuse(task.CodeNotFound, "no such caller")
	}
}
