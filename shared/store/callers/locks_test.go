package callers_test

import (
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/store/storetest"
)

// Changes of callers lock the table callers. Functions with the role hot can neither take this lock nor delay a change with other locks.
func TestHotRoleDelaysNoChangeOfCallers(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, hash := storetest.OpenAt(t, url), sha256.Sum256([]byte("token"))
	grants := callers.Grants{Roles: []string{"submitter"}}
	shop, err := db.Callers.Add(t.Context(), "shop", hash[:], grants, storetest.BuiltIn)
	require.NoError(t, err)

	hot := storetest.ConnectAs(t, url, sandbox.Roles.Hot)
	for _, mode := range []string{"share row exclusive", "row exclusive", "access share"} {
		_, err = hot.Exec(t.Context(), `begin; lock table callers in `+mode+` mode`)
		require.ErrorContains(t, err, "permission denied", mode)
		_, err = hot.Exec(t.Context(), `rollback`)
		require.NoError(t, err)
	}
	tx, err := hot.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err = tx.Exec(t.Context(), `insert into webhook_endpoints (id, caller_id, url, secret) values (gen_random_uuid(), $1, 'https://x.example', 'enc2.x')`, shop.ID)
	require.NoError(t, err, "the foreign key of the endpoint locks the caller")
	_, err = tx.Exec(t.Context(), `lock table webhook_endpoints in access exclusive mode`)
	require.NoError(t, err)

	other, err := db.Callers.Add(t.Context(), "other", hash[:], grants, storetest.BuiltIn)
	require.NoError(t, err)
	_, err = db.Callers.RotateToken(t.Context(), shop.ID, hash[:], storetest.BuiltIn)
	require.NoError(t, err)
	_, _, err = db.Callers.Update(t.Context(), shop.ID, callers.Grants{Roles: []string{"sender"}}, storetest.BuiltIn)
	require.NoError(t, err)
	for _, id := range []int64{shop.ID, other.ID} {
		revoked, _, err := db.Callers.Revoke(t.Context(), id, storetest.BuiltIn)
		require.NoError(t, err)
		require.NotNil(t, revoked.RevokedAt)
	}
}
