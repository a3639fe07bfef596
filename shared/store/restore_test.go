package store_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

// The test runs the statement that the guide for operators prescribes after a restore. Without the statement, a claim after the restore
// could get the claim id of a claim that the backup does not have, and the sender with the old claim could report the task.
func TestRestoredDatabaseRepeatsNoClaimID(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operator.md")
	require.NoError(t, err)
	statement := regexp.MustCompile("(?s)psql \"\\$SENDONCE_OWNER_URL\" -c \"(.*?)\"\n").FindSubmatch(page)
	require.NotNil(t, statement)

	url := sandbox.NewDatabase(t)
	db := storetest.OpenAt(t, url)
	id := db.MustSubmit(t, storetest.Submission())[0].ID
	restore := sandbox.Dump(t, url)
	lost := db.ClaimAs(t, "phone", 1)[0]

	url = restore()
	owner := storetest.ConnectAsOwner(t, url)
	_, err = migrations.Up(t.Context(), owner, sandbox.Roles)
	require.NoError(t, err)
	_, err = owner.Exec(t.Context(), string(statement[1]))
	require.NoError(t, err)
	db = storetest.OpenAt(t, url)
	again := db.ClaimAs(t, "phone", 1)[0]
	require.Equal(t, id, again.ID)
	require.Greater(t, again.ClaimID, lost.ClaimID)
	require.Equal(t, task.Stale, db.MustReport(t, task.Report{TaskID: id, AppID: "phone", ClaimID: lost.ClaimID, Outcome: task.SentOK}).Verdict)
	require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: id, AppID: "phone", ClaimID: again.ClaimID, Outcome: task.SentOK}).Verdict)
}
