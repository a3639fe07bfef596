package auth

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/auth/authtest"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// process is the Authenticator of one server process. Its built-in admin is "admin" with the password of
// the hash, or "secret" if the hash is nil. Use process in synctest.Test.
type process struct{ *Authenticator }

func newProcess(t *testing.T, hash *PasswordHash, find authtest.Source) *process {
	t.Cleanup(func() { time.Sleep(2 * deferredLookupInterval) }) // until deferred lookups have ended
	return &process{New("admin", "secret", hash, find, nil, slog.New(slog.DiscardHandler))}
}

// login authenticates a call. All calls of login come from the same address.
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

const token = "u8Zr5cO1mQk4"

// knownCallers has these two callers, and "gone" and "outage" of authtest.Callers.
var knownCallers = authtest.Callers(token, "submitter", "sender")

// refusal returns the error of a refused login as a *task.Error.
func refusal(t *testing.T, err error) *task.Error {
	t.Helper()
	var refused *task.Error
	require.ErrorAs(t, err, &refused)
	return refused
}
