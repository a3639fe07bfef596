package fn

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
)

func TestProbesNeedNoPasswordAndAreNotLogged(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	for _, path := range []string{"/healthz", "/readyz"} {
		r := h.call("GET", path, "", anonymous)
		require.Equal(t, 200, r.status)
		require.JSONEq(t, `{"status":"ok"}`, r.body)
		require.Equal(t, 200, h.call("HEAD", path, "", anonymous).status)
		r = h.call("POST", path, "", anonymous)
		require.Equal(t, 405, r.status)
		require.Equal(t, "GET, HEAD", r.header.Get("Allow"))
	}
	h.callLines(0)
}

func TestReadyzReportsProblemOfDatabase(t *testing.T) {
	t.Parallel()
	for status, err := range map[string]error{
		"database away":                                      errors.New("refused"),
		"the database accepts no writes":                     store.ErrReadOnly,
		"settings of the database role changed: run migrate": fmt.Errorf("%w: search_path", store.ErrRoleSettings),
	} {
		h := startServer(t, nil, greeter())
		h.env.databaseProbe = newDatabaseProbe(func(context.Context) error { return err })
		r := h.call("GET", "/readyz", "")
		require.Equal(t, 503, r.status)
		require.JSONEq(t, fmt.Sprintf(`{"status":%q}`, status), r.body)
		require.Equal(t, "1", r.header.Get("Retry-After"))
		require.Equal(t, 200, h.call("GET", "/healthz", "").status, "the process is alive")
	}
}
