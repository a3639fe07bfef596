package migrations_test

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestEnsureTriggerCaller(t *testing.T) {
	t.Parallel()
	owner := connect(t, sandbox.NewDatabase(t))
	oldPassword, newPassword := strings.Repeat("a", 24), strings.Repeat("b", 24)
	for _, step := range []struct{ password, action string }{
		{oldPassword, "caller.create"}, {oldPassword, ""}, {newPassword, "caller.rotate"}, {newPassword, ""},
	} {
		action, err := migrations.EnsureTriggerCaller(t.Context(), owner, "sendonce-trigger", step.password)
		require.NoError(t, err)
		require.Equal(t, step.action, action)
	}
	var roles, queues []string
	var hash []byte
	require.NoError(t, owner.QueryRow(t.Context(), "SELECT roles, queues, token_hash FROM callers").Scan(&roles, &queues, &hash))
	sum := sha256.Sum256([]byte(newPassword))
	require.Equal(t, []string{"trigger"}, roles)
	require.Empty(t, queues)
	require.Equal(t, sum[:], hash)
	require.Equal(t, []string{
		`caller.create {"name": "sendonce-trigger", "roles": ["trigger"]}`,
		`caller.rotate {"name": "sendonce-trigger", "roles": ["trigger"]}`,
	}, queryStrings(t, owner, "SELECT action || ' ' || coalesce(before::text, '') || after::text FROM operator_actions ORDER BY id"))

	_, err := migrations.EnsureTriggerCaller(t.Context(), owner, "sendonce-trigger", "guessable")
	require.ErrorContains(t, err, "at least 24 random characters")
	for name, change := range map[string]string{"wider": "roles = '{trigger,admin}'", "revoked": "revoked_at = now()"} {
		_, err := migrations.EnsureTriggerCaller(t.Context(), owner, name, oldPassword)
		require.NoError(t, err)
		_, err = owner.Exec(t.Context(), "UPDATE callers SET "+change+" WHERE name = $1", name)
		require.NoError(t, err)
	}
	_, err = migrations.EnsureTriggerCaller(t.Context(), owner, "wider", newPassword)
	require.ErrorContains(t, err, "caller wider of the trigger: there is a caller of this name with other roles")
	action, err := migrations.EnsureTriggerCaller(t.Context(), owner, "wider", oldPassword)
	require.NoError(t, err, "a caller that has this password already is not changed")
	require.Empty(t, action)
	_, err = migrations.EnsureTriggerCaller(t.Context(), owner, "revoked", oldPassword)
	require.ErrorContains(t, err, "caller revoked of the trigger: it was revoked")
	action, err = migrations.EnsureTriggerCaller(t.Context(), owner, "revoked", newPassword)
	require.NoError(t, err)
	require.Equal(t, "caller.rotate", action)
	require.Empty(t, queryStrings(t, owner, "SELECT name FROM callers WHERE revoked_at IS NOT NULL"))
}
