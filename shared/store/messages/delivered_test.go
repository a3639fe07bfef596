package messages_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

func mustRecordDelivered(t *testing.T, db *storetest.DB, at time.Time, rows ...*messages.Submission) {
	t.Helper()
	require.NoError(t, db.Messages.RecordDelivered(t.Context(), store.Column(rows, func(m *messages.Submission) task.ID { return m.ID }),
		store.Column(rows, func(m *messages.Submission) task.Hash { return m.Fingerprint }), at))
}

func TestDeliveryTimeIsStoredBeforeAndAfterSave(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	at := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	delivered := func(m *messages.Submission) time.Time { t.Helper(); return db.MustMessage(t, m.ID).DeliveredAt }
	early, late, direct, other := accepted(1, "early"), accepted(2, "late"), accepted(3, "direct"), accepted(4, "other", data(`"other"`))

	mustRecordDelivered(t, db, at, early)
	recorded, err := db.Messages.DeliveredAt(t.Context(), early.ID)
	require.NoError(t, err)
	require.True(t, recorded.Equal(at), "the message is not saved yet")
	recorded, err = db.Messages.DeliveredAt(t.Context(), late.ID)
	require.NoError(t, err)
	require.Zero(t, recorded)
	require.Equal(t, []uint64{1}, missing(t, db, 1, 1), "a message that is only delivered is missing")
	mustSaveAccepted(t, db, early, late)
	require.True(t, delivered(early).Equal(at), "the time was recorded before the message was saved")
	require.Zero(t, delivered(late))
	mustRecordDelivered(t, db, at, early, late)
	require.True(t, delivered(late).Equal(at), "the time was recorded after the message was saved")
	mustRecordDelivered(t, db, at.Add(time.Minute), early, late, late) // the same message twice
	mustRecordDelivered(t, db, at.Add(-time.Minute), late)
	require.True(t, delivered(early).Equal(at), "the earliest time counts")
	require.True(t, delivered(late).Equal(at.Add(-time.Minute)))

	saved := storetest.Message("direct")
	db.MustSave(t, saved, storetest.Message("other"))
	mustRecordDelivered(t, db, at, direct, other)
	require.True(t, delivered(saved).Equal(at), "the same message, saved by Submit")
	require.Equal(t, []messages.Saving{messages.SavedBefore, messages.SaveRejected}, mustSaveAccepted(t, db, direct, other))
	require.Zero(t, delivered(other), "the message that is saved under this id is not the delivered message")

	// A final message gets the time too, and its UpdatedAt does not change.
	final := accepted(5, "final", withoutConfirm)
	mustSaveAccepted(t, db, final)
	_, err = db.Messages.Relay(t.Context(), 100, messages.Held{}, storetest.Always(storetest.Accepted).Publish)
	require.NoError(t, err)
	before := db.MustMessage(t, final.ID)
	require.True(t, before.Final())
	mustRecordDelivered(t, db, at, final)
	after := db.MustMessage(t, final.ID)
	require.True(t, after.DeliveredAt.Equal(at))
	require.Equal(t, before.UpdatedAt, after.UpdatedAt)
}

func TestConcurrentSavesKeepDeliveryTimes(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	const rounds, each = 20, 20
	at := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	var all []*messages.Submission
	for round := range rounds {
		rows := make([]*messages.Submission, each)
		for i := range rows {
			rows[i] = accepted(int64(round*each+i+1), fmt.Sprint(round, ".", i), withoutConfirm)
		}
		all = append(all, rows...)
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := db.Messages.SaveAccepted(t.Context(), rows); err != nil {
				t.Error(err)
			}
			if _, err := db.Messages.Relay(t.Context(), 500, messages.Held{}, storetest.Always(storetest.Accepted).Publish); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			time.Sleep(time.Duration(round%5) * time.Millisecond)
			mustRecordDelivered(t, db, at, rows...)
		})
		both.Wait()
	}
	for _, m := range all {
		require.True(t, db.MustMessage(t, m.ID).DeliveredAt.Equal(at), m.ClientMsgID)
	}
}

func TestOldDeliveryTimeOfUnsavedMessageIsDeleted(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	kept := accepted(1, "kept")
	mustSaveAccepted(t, db, kept)
	mustRecordDelivered(t, db, time.Now().Add(-messages.DeliveredKept-time.Minute), kept, accepted(2, "lost"))
	mustRecordDelivered(t, db, time.Now(), accepted(3, "waits"))
	require.NoError(t, db.Messages.ForgetDelivered(t.Context()))
	require.Equal(t, 2, db.Count(t, `select count(*) from accepted_messages`))
	saved, err := db.Messages.PurgeCandidates(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Equal(t, []messages.AcceptedSeq{{ID: kept.ID, Seq: 1}}, saved)
}

func TestRecordDeliveredLeavesNoRowOfPurgedMessage(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	saved, unsaved := accepted(1, "saved"), accepted(2, "unsaved")
	mustSaveAccepted(t, db, saved)
	db.Exec(t, `delete from accepted_messages`)
	at := time.Now().Truncate(time.Microsecond)
	mustRecordDelivered(t, db, at, saved, unsaved)
	require.True(t, db.MustMessage(t, saved.ID).DeliveredAt.Equal(at))
	require.Equal(t, 1, db.Count(t, `select count(*) from accepted_messages`), "only the row of the unsaved message is left: a save will read it")
}
