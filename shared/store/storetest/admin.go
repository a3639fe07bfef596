package storetest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/admin"
)

// Actions returns the audit entries about a subject, oldest first.
func (db *DB) Actions(t *testing.T, subject string) []admin.Action {
	t.Helper()
	page, more, err := db.Admin.Actions(t.Context(), subject, 0, 100)
	require.NoError(t, err)
	require.False(t, more)
	slices.Reverse(page)
	return page
}

// The operators of tests. BuiltIn is the built-in admin, which has no row in callers.
var (
	Tester  = store.Operator{CallerID: 7, Name: "tester", RequestID: "req-1"}
	BuiltIn = store.Operator{Name: "admin", RequestID: "req-1"}
)

func ActionNames(actions []admin.Action) (names []string) {
	for _, a := range actions {
		names = append(names, a.Action)
	}
	return names
}

// EnsureCaller inserts a caller with this id, unless it exists or is 0, the built-in admin.
func (db *DB) EnsureCaller(t *testing.T, id int64) {
	t.Helper()
	db.Exec(t, `insert into callers (id, name, token_hash, roles, queues) overriding system value
		select $1::bigint, 'caller ' || $1::bigint, sha256(''), '{submitter}', '{}' where $1::bigint <> 0 on conflict do nothing`, id)
}
