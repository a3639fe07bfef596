package fn

import (
	"crypto/sha256"
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

func TestCallerIsReadFromDatabase(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	owner, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer owner.Close(t.Context())
	hash := sha256.Sum256([]byte("a-token"))
	for name, revoked := range map[string]string{"shop": "null", "former": "now()"} {
		_, err = owner.Exec(t.Context(), "insert into callers (name, token_hash, roles, queues, revoked_at) values ($1, $2, '{submitter}', '{default}', "+revoked+")", name, hash[:])
		require.NoError(t, err)
	}

	h := &testServer{t: t, log: &sandbox.LogBuffer{}}
	h.env, err = NewEnv(settings.Config{DatabaseURL: url, Username: "admin", Password: "secret", Roles: settings.Roles(sandbox.Roles)},
		slog.New(slog.NewJSONHandler(h.log, nil)))
	require.NoError(t, err)
	defer h.env.Close()
	handler, err := Handler(h.env, greeter())
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	defer server.Close()
	h.url = server.URL

	require.Equal(t, 200, h.call("POST", "/api/v1/greet", `{"name":"a"}`, as("shop", "a-token")).status)
	require.Equal(t, 401, h.call("POST", "/api/v1/greet", `{"name":"a"}`, as("shop", "another")).status)
	require.Equal(t, 401, h.call("POST", "/api/v1/greet", `{"name":"a"}`, as("former", "a-token")).status)
	require.Equal(t, 401, h.call("POST", "/api/v1/greet", `{"name":"a"}`, as("nobody", "a-token")).status)
	require.Equal(t, 403, h.call("PUT", "/api/v1/empty", "", as("shop", "a-token")).status)
	require.Equal(t, 200, h.call("GET", "/readyz", "").status)
	require.Equal(t, "shop", h.callLines(3)[0]["caller"])
}
