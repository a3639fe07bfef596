package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

func TestConnectionLostDuringWaitForStandbyIsServerBusy(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	db := storetest.OpenAt(t, proxy.URL())
	require.NoError(t, db.WaitForStandby(t.Context()))
	proxy.LoseResponse(sandbox.Containing("pg_logical_emit_message"))
	err := db.Durably(t.Context(), func() error {
		store.CountCancelledSync(db.DB)
		return nil
	})
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err), "%v", err)
}
