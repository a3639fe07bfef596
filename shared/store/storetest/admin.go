package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/admin"
)

// Actions gives what was done to a subject, oldest first.
func (db *DB) Actions(t *testing.T, subject string) []admin.Action {
	t.Helper()
	page, more, err := db.Admin.Actions(t.Context(), subject, 0, 100)
	require.NoError(t, err)
	require.False(t, more)
	for i, j := 0, len(page)-1; i < j; i, j = i+1, j-1 {
		page[i], page[j] = page[j], page[i]
	}
	return page
}

var Tester = store.Operator{CallerID: 7, Name: "tester", RequestID: "req-1"}

func ActionNames(actions []admin.Action) (words []string) {
	for _, a := range actions {
		words = append(words, a.Action)
	}
	return words
}

// BuiltIn is the admin of the environment.
var BuiltIn = store.Operator{Name: "admin", RequestID: "req-1"}
