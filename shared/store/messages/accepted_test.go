package messages_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/events"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

// accepted returns a message that a stream has accepted with this sequence number.
func accepted(seq int64, key string, change ...func(*messages.Submission)) *messages.Submission {
	return storetest.Message(key, append(change, func(m *messages.Submission) { m.AcceptSeq, m.AcceptedAt, m.Producer = seq, time.Now(), "host" })...)
}

// poisoned makes a message that the database refuses.
func poisoned(m *messages.Submission) { m.MaxSends = 21 }

func mustSaveAccepted(t *testing.T, db *storetest.DB, rows ...*messages.Submission) []messages.Saving {
	t.Helper()
	out, err := db.Messages.SaveAccepted(t.Context(), rows)
	require.NoError(t, err)
	return out
}

func missing(t *testing.T, db *storetest.DB, first, last uint64) []uint64 {
	t.Helper()
	seqs, err := db.Messages.MissingSequences(t.Context(), first, last)
	require.NoError(t, err)
	return seqs
}

func TestSaveAcceptedReturnsResultOfEachRow(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSave(t, storetest.Message("saved-directly"), storetest.Message("differs"))
	require.Equal(t, []messages.Saving{messages.SavedNow, messages.SavedNow}, mustSaveAccepted(t, db, accepted(1, "a"), accepted(2, "b")))
	out := mustSaveAccepted(t, db, accepted(1, "a"), accepted(2, "b"), accepted(3, "c"), accepted(4, "c"), accepted(5, "c", data(`"other"`)),
		accepted(6, "a", data(`"other"`)), accepted(7, "saved-directly"), accepted(8, "differs", data(`"other"`)))
	require.Equal(t, []messages.Saving{messages.SavedBefore, messages.SavedBefore, messages.SavedNow, messages.SavedBefore, messages.SaveRejected,
		messages.SaveRejected, messages.SavedBefore, messages.SaveRejected}, out)
	require.Equal(t, 5, db.Count(t, `select count(*) from messages`))
	require.Equal(t, 5, db.Count(t, `select count(*) from message_live`))
	require.Zero(t, db.Count(t, `select count(*) from dead_letters`), "the sender learns of the rejection from the acknowledgement")
}

// Every message that a caller puts into the stream counts for the caller's share of the stream, also a message that SaveAccepted
// rejects. Otherwise the caller could fill the stream with such messages.
func TestEveryAcceptedMessageCountsForItsCaller(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	greedy, modest := ofCaller(1), ofCaller(2)
	large := data(`"` + strings.Repeat("x", 998) + `"`)
	db.MustSave(t, storetest.Message("rejected", greedy), storetest.Message("repeated", greedy, large))
	save := func() {
		t.Helper()
		mustSaveAccepted(t, db, accepted(1, "rejected", greedy, large), accepted(2, "repeated", greedy, large), accepted(3, "saved", greedy, large),
			accepted(4, "other", modest, large))
	}
	used := func(caller int64) int {
		return db.Count(t, `select sum(bytes) from stream_usage where stream = 'ACCEPTED' and caller_id = $1`, caller)
	}
	save()
	require.Equal(t, 3*1500, used(1), "1000 bytes of data and 500 of overhead for each message")
	require.Equal(t, 1500, used(2))
	save()
	require.Equal(t, 3*1500, used(1), "the same sequence number is not counted again")
	mustSaveAccepted(t, db, accepted(5, "rejected", greedy, large))
	require.Equal(t, 4*1500, used(1), "if the stream stores a message again, the message is counted again")
}

func TestAcceptedMessagesKeepTheOrderOfTheStream(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var rows []*messages.Submission
	for i := range 50 {
		rows = append(rows, accepted(int64(i+1), fmt.Sprint("k-", i)))
	}
	require.Equal(t, make([]messages.Saving, len(rows)), mustSaveAccepted(t, db, rows...), "all are SavedNow")
	require.Zero(t, db.Count(t, `select count(*) from (
		select accept_seq - lag(accept_seq) over (order by next_at, id) as step from messages join message_live using (id)) s where step <> 1`))
	require.Equal(t, []uint64{51, 52}, missing(t, db, 1, 52))
}

func TestPoisonedMessageDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	bad := accepted(2, "bad", poisoned)
	require.Equal(t, []messages.Saving{messages.SavedNow, messages.SavePoisoned, messages.SavedNow}, mustSaveAccepted(t, db, accepted(1, "a"), bad, accepted(3, "b")))
	require.Equal(t, 2, db.Count(t, `select count(*) from messages`))
	dead, err := db.Messages.DeadAccepted(t.Context(), []string{bad.ID.String(), task.NewID().String()})
	require.NoError(t, err)
	require.Equal(t, []string{bad.ID.String()}, dead)
	require.Empty(t, missing(t, db, 1, 3))
}

func TestPoisonedMessageLeavesMostOfItsBatchTogether(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var rows []*messages.Submission
	for i := range 64 {
		rows = append(rows, accepted(int64(i+1), fmt.Sprint(i)))
	}
	poisoned(rows[20])
	mustSaveAccepted(t, db, rows...)
	require.Equal(t, 63, db.Count(t, `select count(*) from messages`))
	require.Equal(t, 7+7, db.Count(t, `select count(distinct xmin::text) from messages`), "seven parts of eight, and the other messages of the eighth part")
}

func TestAcknowledgementBacklogDelaysNoOtherCaller(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for batch := range 3 {
		var rows []*messages.Submission
		for i := range 20 {
			seq := int64(20*batch + i + 1)
			rows = append(rows, accepted(seq, fmt.Sprint("k-", seq), ofCaller(7)))
		}
		mustSaveAccepted(t, db, rows...)
	}
	mustSaveAccepted(t, db, accepted(61, "other", ofCaller(8)))
	var published []string
	_, err := db.Events.Relay(t.Context(), "", 40, func(_ context.Context, due []events.Due) (results []msg.Result, _ error) {
		for _, d := range due {
			published = append(published, d.ClientMsgID)
			results = append(results, storetest.Accepted)
		}
		return results, nil
	})
	require.NoError(t, err)
	require.Contains(t, published, "other")
}

// A message of a nearly full stream is purged at once, perhaps before its acknowledgement is published.
func TestPurgedPoisonedMessageIsStillAcknowledged(t *testing.T) {
	t.Parallel()
	for name, purge := range map[string]func(t *testing.T, db *storetest.DB){
		"message purged": func(t *testing.T, db *storetest.DB) {
			saved, err := db.Messages.PurgeCandidates(t.Context(), 0, 10)
			require.NoError(t, err)
			require.Len(t, saved, 2)
			require.NoError(t, db.Messages.MarkPurged(t.Context(), saved))
		},
		"stream created again": func(t *testing.T, db *storetest.DB) {
			_, err := db.Messages.Checked(t.Context(), time.Now().Add(time.Minute))
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			_, err := db.Messages.Checked(t.Context(), time.Now().Add(-time.Hour))
			require.NoError(t, err)
			mustSaveAccepted(t, db, accepted(1, "good"), accepted(2, "bad", poisoned))
			purge(t, db)
			saved, err := db.Messages.PurgeCandidates(t.Context(), 0, 10)
			require.NoError(t, err)
			require.Empty(t, saved, "no message is purged twice")
			require.Equal(t, []uint64{1, 2}, missing(t, db, 1, 2), "the rows do not count for the same sequence numbers of a new stream")
			require.NoError(t, db.Messages.ForgetDelivered(t.Context()))
			var acks []string
			_, err = db.Events.Relay(t.Context(), "", 10, func(_ context.Context, due []events.Due) (results []msg.Result, _ error) {
				for _, d := range due {
					acks = append(acks, fmt.Sprint(d.Kind, " ", d.From, " ", d.ClientMsgID, " ", d.AcceptSeq))
					results = append(results, storetest.Accepted)
				}
				return results, nil
			})
			require.NoError(t, err)
			require.ElementsMatch(t, []string{"message.saved shop good 1", "message.rejected shop bad 2"}, acks)

			db.Exec(t, `update accepted_messages set saved_at = now() - interval '25 hours'`)
			require.NoError(t, db.Messages.ForgetDelivered(t.Context()))
			require.Zero(t, db.Count(t, `select count(*) from accepted_messages`))
		})
	}
}

// Removing all rows of a large stream at once would take longer than the statement_timeout of a function.
func TestRowsOfEarlierStreamAreRemovedInParts(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into accepted_messages (id, accept_seq, saved_at) select gen_random_uuid(), g, now() - interval '1 hour' from generate_series(1, 25000) g`)
	mustSaveAccepted(t, db, accepted(25_001, "of-the-new-stream"))
	db.Exec(t, `create function refuse_many() returns trigger language plpgsql as $$
begin if (select count(*) from gone) > 10000 then raise 'too many rows'; end if; return null; end $$`)
	db.Exec(t, `create trigger refuse_many after delete on accepted_messages referencing old table as gone for each statement execute function refuse_many()`)
	created := time.Now().Add(-time.Minute).Truncate(time.Microsecond)
	_, err := db.Messages.Checked(t.Context(), created)
	require.NoError(t, err)
	require.Equal(t, []uint64{25_000}, missing(t, db, 25_000, 25_001))
	require.Equal(t, 1, db.Count(t, `select count(*) from accepted_messages`))
	require.Equal(t, 1, db.Count(t, `select count(*) from accepted_checked where stream_created = $1`, created))
}

func TestProgressBelongsToOneStream(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	created := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	checked := func(created time.Time) messages.Checked {
		t.Helper()
		c, err := db.Messages.Checked(t.Context(), created)
		require.NoError(t, err)
		return c
	}
	require.Zero(t, checked(created))
	require.Greater(t, checked(created).Ago, 24*time.Hour, "the stream was not scanned yet")
	require.NoError(t, db.Messages.MarkScanned(t.Context(), created, 9, 4))
	require.NoError(t, db.Messages.SetChecked(t.Context(), created, 7, 9))
	require.NoError(t, db.Messages.SetChecked(t.Context(), created, 5, 9))
	c := checked(created)
	require.Less(t, c.Ago, time.Minute)
	c.Ago = 0
	require.Equal(t, messages.Checked{Seq: 7, LastSeq: 9, ConsumedSeq: 4}, c, "Seq does not decrease")

	db.Exec(t, `update accepted_checked set accept_seq = 9e18`)
	require.NoError(t, db.Messages.SetChecked(t.Context(), created, 6, 9))
	require.EqualValues(t, 6, checked(created).Seq, "the recorded number was wrong: above the last sequence number of the stream")

	recreated := created.Add(time.Second)
	checked(recreated)
	require.NoError(t, db.Messages.SetChecked(t.Context(), created, 8, 9))
	require.Zero(t, checked(recreated).Seq, "progress of the earlier stream is not recorded for the new stream")
}
