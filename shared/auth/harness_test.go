package auth

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// process is the Authenticator of one server process. Its built-in admin is "admin" with the password
// "secret". Use it in synctest.Test.
type process struct{ *Authenticator }

func newProcess(t *testing.T, hash *PasswordHash, find source) *process {
	t.Cleanup(func() { time.Sleep(2 * deferredLookupInterval) }) // until deferred lookups have ended
	return &process{New("admin", "secret", hash, find, nil, slog.New(slog.DiscardHandler))}
}

// login authenticates a call. All its calls come from the same address.
func (p *process) login(name, password string) (callers.Caller, error) {
	return p.loginFrom("192.0.2.1", name, password)
}

func (p *process) loginFrom(address, name, password string) (callers.Caller, error) {
	return p.Authenticate(context.Background(), Login{Name: name, Password: password, Address: prefix(address), Began: time.Now()})
}

func prefix(address string) netip.Prefix {
	a := netip.MustParseAddr(address)
	return netip.PrefixFrom(a, a.BitLen())
}

// source is a function that implements Source, instead of a database.
type source func(ctx context.Context, name string, list bool) (callers.Caller, error)

func (find source) ByName(ctx context.Context, name string, list bool) (callers.Caller, error) {
	return find(ctx, name, list)
}

func (find source) Existing(ctx context.Context, names []string) (existing []string, err error) {
	for _, name := range names {
		if _, err := find(ctx, name, false); err == nil {
			existing = append(existing, name)
		}
	}
	return existing, nil
}

const token = "u8Zr5cO1mQk4"

// knownCallers is a source of three callers with the token: "submitter", "sender", and "gone", which is
// revoked. A lookup of "outage" fails as if the database were unavailable.
func knownCallers(_ context.Context, name string, _ bool) (callers.Caller, error) {
	caller := callers.Caller{ID: 7, Name: name, Proof: callers.TokenProof(nil, sha256.Sum256([]byte(token)))}
	switch name {
	case "submitter", "sender":
		return caller, nil
	case "gone":
		caller.Revoked = true
		return caller, nil
	case "outage":
		return callers.Caller{}, context.DeadlineExceeded
	}
	return callers.Caller{}, task.Refuse(task.CodeNotFound, "no such caller")
}

// refusal returns err, with which a login was refused, as a *task.Error.
func refusal(t *testing.T, err error) *task.Error {
	t.Helper()
	var refused *task.Error
	require.ErrorAs(t, err, &refused)
	return refused
}
