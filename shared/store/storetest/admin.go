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

var Tester = store.Operator{CallerID: 7, Name: "tester", RequestID: "req-1"}

func ActionNames(actions []admin.Action) (names []string) {
	for _, a := range actions {
		names = append(names, a.Action)
	}
	return names
}

// BuiltIn is the admin of the settings, which has no row in callers.
var BuiltIn = store.Operator{Name: "admin", RequestID: "req-1"}
