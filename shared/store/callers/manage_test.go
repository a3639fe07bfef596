package callers_test

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

// If a limited operator is revoked while it creates a caller, the new caller is revoked too.
func TestRevokeIncludesCallerBeingCreated(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, func(c *stores.Config) { c.OperatorCallers = 1 })
	hash := sha256.Sum256([]byte("token"))
	operator, err := db.Callers.Add(t.Context(), "ops", hash[:], callers.Grants{Roles: []string{"admin", "submitter"}, Queues: []string{"q"}}, storetest.BuiltIn)
	require.NoError(t, err)
	db.Exec(t, `create function wait_here() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(42); return new; end $$`)
	db.Exec(t, `create trigger wait_here before insert on callers for each row execute function wait_here()`)
	release := db.HoldLock(t, `select pg_advisory_xact_lock(42)`)
	waiting := func() int {
		return db.Count(t, `select count(*) from pg_locks where not granted and database = (select oid from pg_database where datname = current_database())`)
	}

	created, revoked := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := db.Callers.Add(t.Context(), "ops.phone", hash[:], callers.Grants{Roles: []string{"submitter"}, Queues: []string{"q"}},
			store.Operator{Name: "ops", CallerID: operator.ID})
		created <- err
	}()
	require.Eventually(t, func() bool { return len(created) == 1 || waiting() == 1 }, time.Minute, 5*time.Millisecond)
	go func() {
		_, _, err := db.Callers.Revoke(t.Context(), operator.ID, storetest.BuiltIn)
		revoked <- err
	}()
	require.Eventually(t, func() bool { return len(revoked) == 1 || waiting() == 2 }, time.Minute, 5*time.Millisecond)
	release()
	require.NoError(t, <-created)
	require.NoError(t, <-revoked)
	require.Equal(t, 2, db.Count(t, `select count(*) from callers where revoked_at is not null`))
}

func TestRotatedTokenReplacesTheOldToken(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	oldHash, newHash := sha256.Sum256([]byte("old")), sha256.Sum256([]byte("new"))
	c, err := db.Callers.Add(t.Context(), "shop", oldHash[:], callers.Grants{Roles: []string{"submitter"}}, storetest.BuiltIn)
	require.NoError(t, err)
	_, err = db.Callers.RotateToken(t.Context(), c.ID, newHash[:], storetest.BuiltIn)
	require.NoError(t, err)
	login, err := db.Callers.ByName(t.Context(), "shop", false)
	require.NoError(t, err)
	require.Equal(t, []bool{false, true}, []bool{login.MatchesToken(oldHash), login.MatchesToken(newHash)})
	for range 2 {
		c, _, err = db.Callers.Revoke(t.Context(), c.ID, storetest.BuiltIn)
		require.NoError(t, err)
		require.NotNil(t, c.RevokedAt)
	}
	require.Equal(t, []string{"caller.create", "caller.rotate", "caller.revoke"}, storetest.ActionNames(db.Actions(t, fmt.Sprintf("caller/%d", c.ID))))
	_, _, err = db.Callers.Revoke(t.Context(), c.ID+1, storetest.BuiltIn)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}
