package store

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

func TestMayHaveCommittedUnlessFailureIsCertain(t *testing.T) {
	t.Parallel()
	const adminShutdown = "57P01"
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: CodeLockTimeout}, false},
		{&pgconn.PgError{SeverityUnlocalized: "FATAL", Code: adminShutdown}, true},
		{&pgconn.PgError{SeverityUnlocalized: "FATAL", Code: codeProtocolViolation, Message: "query_wait_timeout"}, false},
		{Busy(), false},
		{io.ErrUnexpectedEOF, true},
		{context.DeadlineExceeded, true},
	} {
		require.Equal(t, c.want, MayHaveCommitted(fmt.Errorf("commit: %w", c.err)), c.err)
	}
}

func TestCardinalityViolationIsPoison(t *testing.T) {
	t.Parallel()
	require.True(t, IsPoison(&pgconn.PgError{Code: "21000"}))
	require.False(t, IsPoison(&pgconn.PgError{Code: "57P01"}))
}
