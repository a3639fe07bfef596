package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// actions gives what was done to a subject, oldest first.
func (db *DB) actions(t *testing.T, subject string) []Action {
	t.Helper()
	page, more, err := db.Actions(t.Context(), subject, 0, 100)
	require.NoError(t, err)
	require.False(t, more)
	for i, j := 0, len(page)-1; i < j; i, j = i+1, j-1 {
		page[i], page[j] = page[j], page[i]
	}
	return page
}

var tester = Operator{CallerID: 7, Name: "tester", RequestID: "req-1"}

func words(actions []Action) (words []string) {
	for _, a := range actions {
		words = append(words, a.Action)
	}
	return words
}

// builtIn is the admin of the environment.
var builtIn = Operator{Name: "admin", RequestID: "req-1"}
