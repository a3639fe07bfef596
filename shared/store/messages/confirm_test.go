package messages_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

// mustConfirm confirms a message for a consumer, with the permission of a recipient, and returns the new state of the message.
func mustConfirm(t *testing.T, db *storetest.DB, id task.ID, consumer string) string {
	t.Helper()
	after, err := db.Messages.Confirm(t.Context(), id, storetest.ConfirmationBy(consumer))
	require.NoError(t, err)
	return after.State()
}

func TestConfirmTokenIsCreatedOnceAndStaysValidInTheArchive(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, other := storetest.OpenAt(t, url, storetest.RetentionDays(90, 0)), storetest.OpenAt(t, url)
	a, b := storetest.Message("a", toURL), storetest.Message("b", toURL)
	db.MustSave(t, a, b)
	r, found, err := db.Messages.Recipient(t.Context(), a.ID, "points")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, messages.Recipient{To: a.To, FirstSend: msg.MaybeSent}, r, "there is no token before the first send")

	concurrent := make([]map[task.ID][]byte, 6)
	var all sync.WaitGroup
	for i := range concurrent {
		all.Go(func() {
			concurrent[i], _ = []*storetest.DB{db, other}[i%2].Messages.ConfirmTokens(t.Context(), []task.ID{a.ID, b.ID})
		})
	}
	all.Wait()
	tokens, err := db.Messages.ConfirmTokens(t.Context(), []task.ID{a.ID, b.ID})
	require.NoError(t, err)
	require.Len(t, tokens[a.ID], 32)
	require.NotEqual(t, tokens[a.ID], tokens[b.ID])
	for _, got := range concurrent {
		require.Equal(t, tokens, got, "concurrent calls return the same tokens")
	}

	_, err = db.Messages.Abandon(t.Context(), a.ID, storetest.Tester) // only final messages are archived
	require.NoError(t, err)
	require.Equal(t, 1, archiveMessages(t, db))
	r, found, err = db.Messages.Recipient(t.Context(), a.ID, "points")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, messages.Recipient{To: a.To, Token: tokens[a.ID], FirstSend: msg.WasSent}, r)
	after, err := db.Messages.Confirm(t.Context(), a.ID, messages.Confirmation{Consumer: "shop", Permission: msg.HasToken})
	require.NoError(t, err)
	require.Equal(t, "received", after.State(), "an abandoned message can still be confirmed")

	_, found, err = db.Messages.Recipient(t.Context(), task.NewID(), "points")
	require.NoError(t, err)
	require.False(t, found)
}

var byOperator = messages.Confirmation{Consumer: "points", Permission: msg.ByOperator, By: storetest.Tester}

func TestConfirmationByOperatorIsAuditedOnce(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	m := storetest.Message("k", func(m *messages.Submission) { m.ExpectedReceipts = 2 })
	db.MustSave(t, m)
	db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted))
	for range 2 {
		_, err := db.Messages.Confirm(t.Context(), m.ID, byOperator)
		require.NoError(t, err)
	}
	log := db.Actions(t, m.ID.String())
	require.Equal(t, []string{"message.receive"}, storetest.ActionNames(log))
	require.JSONEq(t, `{"state":"sent","status":1,"consumer":"points"}`, string(log[0].After))
}

func TestMessageThatWasNeverSentIsNotConfirmed(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	unsent := storetest.Message("unsent")
	db.MustSave(t, unsent)
	_, err := db.Messages.Confirm(t.Context(), unsent.ID, byOperator)
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err), "the first send may be in progress")
	_, err = db.Messages.Abandon(t.Context(), unsent.ID, storetest.Tester)
	require.NoError(t, err)
	_, err = db.Messages.Confirm(t.Context(), unsent.ID, byOperator)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err), "the message was never sent")
	require.Equal(t, []string{"message.abandon"}, storetest.ActionNames(db.Actions(t, unsent.ID.String())))
}
