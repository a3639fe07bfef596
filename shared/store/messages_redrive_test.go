package store

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// stuckKeys are the client_msg_ids of a stuck list, read page by page.
func (db *DB) stuckKeys(t *testing.T, status msg.Status, olderThan time.Duration) []string {
	t.Helper()
	keys := []string{}
	for after, more := (task.ID{}), true; more; {
		var page []MessageDetail
		var err error
		page, more, err = db.StuckMessages(t.Context(), status, olderThan, after, 1)
		require.NoError(t, err)
		for _, m := range page {
			keys, after = append(keys, m.ClientMsgID), m.ID
		}
	}
	return keys
}

// saveStuck saves messages of which each has used its sends up: those whose key
// begins with r were refused, the others sent and not confirmed.
func (db *DB) saveStuck(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		db.mustSave(t, reliable(key))
	}
	b := &broker{say: func(d DueMessage) msg.Result {
		if strings.HasPrefix(d.ClientMsgID, "r") {
			return refuses
		}
		return takes
	}}
	for range 2 {
		db.relay(t, b)
	}
}

func idOf(key string) task.ID { return reliable(key).ID }

func TestAMessageWithoutSendsIsInTheListOfWhatWentWrong(t *testing.T) {
	t.Parallel()
	db := open(t)
	db.saveStuck(t, "r1", "r2", "s1")
	db.mustSave(t, reliable("fresh"))
	require.ElementsMatch(t, []string{"r1", "r2"}, db.stuckKeys(t, msg.Sending, 0))
	require.Equal(t, []string{"s1"}, db.stuckKeys(t, msg.Sent, 0))
	require.Empty(t, db.stuckKeys(t, msg.Sent, time.Hour))
	require.Equal(t, refuses.Reason, db.mustMessage(t, idOf("r1")).LastError)
	require.Equal(t, 3, db.count(t, `select count(*) from reliable_messages where status <> 2 and remaining_sends = 0`), "the query for stuck messages")
	require.Zero(t, db.relay(t, always(takes)).Rows-1, "only the fresh one is sent")
}

func TestARedriveIsSentUnderNewNamesAndRecorded(t *testing.T) {
	t.Parallel()
	db := open(t)
	db.saveStuck(t, "s1")
	by := tester
	by.Reason = "the points service is back"
	d, err := db.RedriveMessage(t.Context(), idOf("s1"), by)
	require.NoError(t, err)
	require.EqualValues(t, 2, d.Remaining)
	require.Equal(t, "sent", d.State(), "the status does not go back")
	b := always(takes)
	relayed, err := db.RelayMessages(t.Context(), 10, b.publish)
	require.NoError(t, err)
	require.Equal(t, 1, relayed.Rows, "at once")
	require.Equal(t, []string{reliable("s1").send("2.1")}, b.msgIDs())

	_, err = db.ReceiveMessage(t.Context(), idOf("s1"), addressee("points"))
	require.NoError(t, err)
	_, err = db.RedriveMessage(t.Context(), idOf("s1"), by)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	_, err = db.RedriveMessage(t.Context(), task.NewID(), by)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	log := db.actions(t, idOf("s1").String())
	require.Equal(t, []string{"message.redrive"}, words(log))
	require.Equal(t, by.Reason, log[0].Reason)
	require.JSONEq(t, `{"state":"sent","status":1,"epoch":1,"remaining_sends":0,"last_error":""}`, string(log[0].Before))
	require.JSONEq(t, `{"state":"sent","status":1,"epoch":2,"remaining_sends":2,"last_error":""}`, string(log[0].After))
}

func TestAnAbandonedMessageIsSentNoMoreUnlessRedrivenAndAConfirmationStillCounts(t *testing.T) {
	t.Parallel()
	db := open(t)
	ctx := t.Context()
	db.saveStuck(t, "s1", "s2")
	db.mustSave(t, reliable("on its way"))
	for _, key := range []string{"s1", "s2", "on its way", "s1"} {
		d, err := db.AbandonMessage(ctx, idOf(key), tester)
		require.NoError(t, err)
		require.Equal(t, "abandoned", d.State())
		require.Equal(t, "tester", d.FinishedBy)
	}
	require.Equal(t, []string{"message.abandon"}, words(db.actions(t, idOf("s1").String())), "once")
	require.Empty(t, db.stuckKeys(t, msg.Sent, 0))
	require.Zero(t, db.count(t, `select count(*) from reliable_messages where remaining_sends = 0`))
	require.Zero(t, db.relay(t, always(takes)).Rows)

	after, err := db.ReceiveMessage(ctx, idOf("s1"), addressee("points"))
	require.NoError(t, err)
	require.Equal(t, "received", after.State())
	d := db.mustMessage(t, idOf("s1"))
	require.Equal(t, "received", d.State())
	require.Equal(t, "points", d.FinishedBy)
	_, err = db.AbandonMessage(ctx, idOf("s1"), tester)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))

	d, err = db.RedriveMessage(ctx, idOf("s2"), tester)
	require.NoError(t, err)
	require.Equal(t, "sent", d.State())
	require.Empty(t, d.FinishedBy)
	require.Equal(t, 1, db.relay(t, always(takes)).Rows)
	require.Zero(t, db.count(t, `select count(*) from message_live join message_done using (id)`))
}

func TestStuckMessagesAreCountedRedrivenAndAbandonedInBulk(t *testing.T) {
	t.Parallel()
	for name, pooler := range map[string]bool{"directly": false, "as behind a pooler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openAt(t, sandbox.NewDatabase(t), func(c *Config) { c.Pooler = pooler })
			ctx := t.Context()
			db.saveStuck(t, "r1", "r2", "r3", "s1", "s2")
			db.mustSave(t, reliable("fresh"))
			sending := msg.Sending
			count := func(f StuckFilter) int {
				n, err := db.CountStuckMessages(ctx, f)
				require.NoError(t, err)
				return n
			}
			require.Equal(t, 5, count(StuckFilter{}))
			require.Equal(t, 3, count(StuckFilter{Status: &sending}))
			require.Equal(t, 1, count(StuckFilter{Status: &sending, IDs: []task.ID{idOf("r1"), idOf("s1"), idOf("fresh")}}))
			require.Zero(t, count(StuckFilter{OlderThan: time.Hour}))

			n, err := db.RedriveMessages(ctx, StuckFilter{Status: &sending}, 2, tester)
			require.NoError(t, err)
			require.Equal(t, 2, n)
			require.Len(t, db.stuckKeys(t, msg.Sending, 0), 1)
			n, err = db.AbandonMessages(ctx, StuckFilter{}, 10, tester)
			require.NoError(t, err)
			require.Equal(t, 3, n)
			require.Zero(t, count(StuckFilter{}))
			require.Equal(t, 3, db.count(t, `select count(*) from message_done where abandoned and finished_by = 'tester'`))
			require.Equal(t, 3, db.relay(t, always(takes)).Rows, "two redriven and the fresh one")
			require.Equal(t, []string{"message.abandon"}, words(db.actions(t, idOf("s1").String())))
			require.Equal(t, 2, db.count(t, `select count(*) from operator_actions where action = 'message.redrive'`))
			n, err = db.RedriveMessages(ctx, StuckFilter{}, 2, tester)
			require.NoError(t, err)
			require.Zero(t, n)
		})
	}
}
