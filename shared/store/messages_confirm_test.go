package store

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func TestATokenIsMadeOnceAndKeptInTheArchive(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, other := keeping(t, url, 90, 0), openAt(t, url)
	a, b := reliable("a", toURL), reliable("b", toURL)
	db.mustSave(t, a, b)
	r, found, err := db.Recipient(t.Context(), a.ID)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, Recipient{To: a.To}, r, "none before its first send")

	made := make([]map[task.ID][]byte, 6)
	var all sync.WaitGroup
	for i := range made {
		all.Go(func() { made[i], _ = []*DB{db, other}[i%2].ConfirmTokens(t.Context(), []task.ID{a.ID, b.ID}) })
	}
	all.Wait()
	tokens, err := db.ConfirmTokens(t.Context(), []task.ID{a.ID, b.ID})
	require.NoError(t, err)
	require.Len(t, tokens[a.ID], 32)
	require.NotEqual(t, tokens[a.ID], tokens[b.ID])
	for _, m := range made {
		require.Equal(t, tokens, m, "also when several ask at once")
	}

	_, err = db.AbandonMessage(t.Context(), a.ID, tester)
	require.NoError(t, err)
	require.Equal(t, 1, db.archiveMessages(t))
	r, found, err = db.Recipient(t.Context(), a.ID)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, Recipient{a.To, tokens[a.ID]}, r)
	after, err := db.ReceiveMessage(t.Context(), a.ID, Confirmation{Consumer: "door", Ground: msg.HasToken})
	require.NoError(t, err)
	require.Equal(t, "received", after.State())

	_, found, err = db.Recipient(t.Context(), task.NewID())
	require.NoError(t, err)
	require.False(t, found)
}

func TestWhatAnAdminConfirmsIsRecordedOnce(t *testing.T) {
	t.Parallel()
	db := open(t)
	m, unsent := reliable("k", func(m *NewMessage) { m.ExpectedReceipts = 2 }), reliable("unsent")
	db.mustSave(t, m)
	db.relay(t, always(takes))
	db.mustSave(t, unsent)
	byHand := Confirmation{Consumer: "points", Ground: msg.ByHand, By: tester}
	for range 2 {
		_, err := db.ReceiveMessage(t.Context(), m.ID, byHand)
		require.NoError(t, err)
	}
	log := db.actions(t, m.ID.String())
	require.Equal(t, []string{"message.receive"}, words(log))
	require.JSONEq(t, `{"state":"sent","status":1,"consumer":"points"}`, string(log[0].After))

	_, err := db.ReceiveMessage(t.Context(), unsent.ID, byHand)
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err), "it may be on its way")
	_, err = db.AbandonMessage(t.Context(), unsent.ID, tester)
	require.NoError(t, err)
	_, err = db.ReceiveMessage(t.Context(), unsent.ID, byHand)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	require.Equal(t, []string{"message.abandon"}, words(db.actions(t, unsent.ID.String())))
}
