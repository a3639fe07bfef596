package store

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) mustRecordDelivered(t *testing.T, at time.Time, rows ...*NewMessage) {
	t.Helper()
	require.NoError(t, db.RecordDelivered(t.Context(), column(rows, func(m *NewMessage) task.ID { return m.ID }),
		column(rows, func(m *NewMessage) task.Hash { return m.Fingerprint }), at))
}

func TestTheTimeOfADeliveryMeetsItsRowInWhateverOrder(t *testing.T) {
	t.Parallel()
	db := open(t)
	at := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	delivered := func(m *NewMessage) time.Time { t.Helper(); return db.mustMessage(t, m.ID).DeliveredAt }
	early, late, byHand, other := accepted(1, "early"), accepted(2, "late"), accepted(3, "by-hand"), accepted(4, "other", data(`"other"`))

	db.mustRecordDelivered(t, at, early)
	found, err := db.DeliveredAt(t.Context(), early.ID)
	require.NoError(t, err)
	require.True(t, found.Equal(at), "there is no row yet")
	found, err = db.DeliveredAt(t.Context(), late.ID)
	require.NoError(t, err)
	require.Zero(t, found)
	unaccounted, err := db.MissingSequences(t.Context(), 1, 1)
	require.NoError(t, err)
	require.Equal(t, []uint64{1}, unaccounted, "delivered is not saved")
	db.mustSaveAccepted(t, early, late)
	require.True(t, delivered(early).Equal(at), "it was recorded before the row was saved")
	require.Zero(t, delivered(late))
	db.mustRecordDelivered(t, at, early, late)
	require.True(t, delivered(late).Equal(at), "or after")
	db.mustRecordDelivered(t, at.Add(time.Minute), early, late)
	db.mustRecordDelivered(t, at.Add(-time.Minute), late)
	require.True(t, delivered(early).Equal(at), "the first of two counts")
	require.True(t, delivered(late).Equal(at.Add(-time.Minute)))

	saved := reliable("by-hand")
	db.mustSave(t, saved, reliable("other"))
	db.mustRecordDelivered(t, at, byHand, other)
	require.True(t, delivered(saved).Equal(at), "the same message, saved on the other path")
	require.Equal(t, []Saving{SavedBefore, SaveRejected}, db.mustSaveAccepted(t, byHand, other))
	require.Zero(t, delivered(other), "another message under its id was not the one that was delivered")

	// What is at its end has it too, and keeps the time of that.
	ended := accepted(5, "ended", func(m *NewMessage) { m.Confirm = false })
	db.mustSaveAccepted(t, ended)
	_, err = db.RelayMessages(t.Context(), 100, always(takes).publish)
	require.NoError(t, err)
	before := db.mustMessage(t, ended.ID)
	require.True(t, before.Final())
	db.mustRecordDelivered(t, at, ended)
	after := db.mustMessage(t, ended.ID)
	require.True(t, after.DeliveredAt.Equal(at))
	require.Equal(t, before.UpdatedAt, after.UpdatedAt)
}

func TestNoTimeOfADeliveryIsLostBesideSavingAndSending(t *testing.T) {
	t.Parallel()
	db := open(t)
	const rounds, each = 20, 20
	at := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	var all []*NewMessage
	for round := range rounds {
		rows := make([]*NewMessage, each)
		for i := range rows {
			rows[i] = accepted(int64(round*each+i+1), fmt.Sprint(round, ".", i), func(m *NewMessage) { m.Confirm = false })
		}
		all = append(all, rows...)
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := db.SaveAccepted(t.Context(), rows); err != nil {
				t.Error(err)
			}
			if _, err := db.RelayMessages(t.Context(), 500, always(takes).publish); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			time.Sleep(time.Duration(round%5) * time.Millisecond)
			db.mustRecordDelivered(t, at, rows...)
		})
		both.Wait()
	}
	for _, m := range all {
		require.True(t, db.mustMessage(t, m.ID).DeliveredAt.Equal(at), m.ClientMsgID)
	}
}

func TestTheTimeOfADeliveryThatNobodyWillSaveIsForgotten(t *testing.T) {
	t.Parallel()
	db := open(t)
	kept := accepted(1, "kept")
	db.mustSaveAccepted(t, kept)
	db.mustRecordDelivered(t, time.Now().Add(-deliveredKept-time.Minute), kept, accepted(2, "lost"))
	db.mustRecordDelivered(t, time.Now(), accepted(3, "waits"))
	require.NoError(t, db.ForgetDelivered(t.Context()))
	require.Equal(t, 2, db.count(t, `select count(*) from accepted_messages`))
	places, err := db.PurgeCandidates(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Equal(t, []AcceptedPlace{{kept.ID, 1}}, places)
}
