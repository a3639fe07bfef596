package messages_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

// stuckKeys returns the client_msg_ids that ListStuck returns page by page.
func stuckKeys(t *testing.T, db *storetest.DB, status msg.Status, olderThan time.Duration) []string {
	t.Helper()
	stuck, _ := storetest.Pages(t, func(after task.ID) ([]messages.Detail, bool, error) {
		return db.Messages.ListStuck(t.Context(), status, olderThan, after, 1)
	}, func(m messages.Detail) task.ID { return m.ID })
	return store.Column(stuck, func(m messages.Detail) string { return m.ClientMsgID })
}

// saveStuck saves messages that have no sends left. Messages whose key begins with r were refused. The others were
// sent, but not confirmed.
func saveStuck(t *testing.T, db *storetest.DB, keys ...string) {
	t.Helper()
	for _, key := range keys {
		db.MustSave(t, storetest.Message(key))
	}
	b := &storetest.Broker{Respond: func(d messages.Due) msg.Result {
		if strings.HasPrefix(d.ClientMsgID, "r") {
			return refusedByBroker
		}
		return storetest.Accepted
	}}
	for range 2 {
		db.MakeDueAndRelay(t, b)
	}
}

// idOf returns the id of storetest.Message(key).
func idOf(key string) task.ID { return storetest.Message(key).ID }

func TestStuckBodilessMessageDelaysNoOther(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	intact := storetest.Message("intact")
	db.MustSave(t, intact)
	db.Exec(t, `update message_live set remaining_sends = 0, next_at = null`)
	db.Exec(t, `insert into message_live (id, remaining_sends, next_at, kind) values ('00000000-0000-5000-8000-000000000000', 0, null, 0)`)
	n, err := db.Messages.RedriveStuck(t.Context(), messages.StuckFilter{}, 1, store.Operator{Name: "ops"})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestMessageWithoutSendsLeftIsListedAsStuck(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	saveStuck(t, db, "r1", "r2", "s1")
	db.MustSave(t, storetest.Message("fresh"))
	require.ElementsMatch(t, []string{"r1", "r2"}, stuckKeys(t, db, msg.Sending, 0))
	require.Equal(t, []string{"s1"}, stuckKeys(t, db, msg.Sent, 0))
	require.Empty(t, stuckKeys(t, db, msg.Sent, time.Hour))
	require.Equal(t, refusedByBroker.Reason, db.MustMessage(t, idOf("r1")).LastError)
	require.Equal(t, 3, db.Count(t, `select count(*) from reliable_messages where status <> 2 and remaining_sends = 0`), "the query that the users of the original message table have")
	require.Equal(t, 1, db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted)).Rows, "only the fresh message is sent")
}

func TestRedriveUsesNewMsgIDsAndIsAudited(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	saveStuck(t, db, "s1")
	by := storetest.Tester
	by.Reason = "the points service is back"
	d, err := db.Messages.Redrive(t.Context(), idOf("s1"), by)
	require.NoError(t, err)
	require.EqualValues(t, 2, d.Remaining)
	require.Equal(t, "sent", d.State(), "the status does not go back")
	b := storetest.Always(storetest.Accepted)
	require.Equal(t, 1, db.RelayDue(t, b).Rows, "the redriven message is due at once")
	require.Equal(t, []string{storetest.MsgID(storetest.Message("s1"), "2.1")}, b.MsgIDs())

	mustConfirm(t, db, idOf("s1"), "points")
	_, err = db.Messages.Redrive(t.Context(), idOf("s1"), by)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	_, err = db.Messages.Redrive(t.Context(), task.NewID(), by)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	log := db.Actions(t, idOf("s1").String())
	require.Equal(t, []string{"message.redrive"}, storetest.ActionNames(log))
	require.Equal(t, by.Reason, log[0].Reason)
	require.JSONEq(t, `{"state":"sent","status":1,"epoch":1,"remaining_sends":0,"last_error":""}`, string(log[0].Before))
	require.JSONEq(t, `{"state":"sent","status":1,"epoch":2,"remaining_sends":2,"last_error":""}`, string(log[0].After))
}

func TestAbandonedMessageIsNotSentButCanBeConfirmed(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ctx := t.Context()
	saveStuck(t, db, "s1", "s2")
	db.MustSave(t, storetest.Message("fresh"))
	for _, key := range []string{"s1", "s2", "fresh", "s1"} {
		d, err := db.Messages.Abandon(ctx, idOf(key), storetest.Tester)
		require.NoError(t, err)
		require.Equal(t, "abandoned", d.State())
		require.Equal(t, "tester", d.FinishedBy)
	}
	require.Equal(t, []string{"message.abandon"}, storetest.ActionNames(db.Actions(t, idOf("s1").String())), "to abandon it again is not audited")
	require.Empty(t, stuckKeys(t, db, msg.Sent, 0))
	require.Zero(t, db.Count(t, `select count(*) from reliable_messages where remaining_sends = 0`))
	require.Zero(t, db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted)).Rows)

	require.Equal(t, "received", mustConfirm(t, db, idOf("s1"), "points"))
	d := db.MustMessage(t, idOf("s1"))
	require.Equal(t, "received", d.State())
	require.Equal(t, "points", d.FinishedBy)
	_, err := db.Messages.Abandon(ctx, idOf("s1"), storetest.Tester)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))

	d, err = db.Messages.Redrive(ctx, idOf("s2"), storetest.Tester)
	require.NoError(t, err)
	require.Equal(t, "sent", d.State())
	require.Empty(t, d.FinishedBy)
	require.Equal(t, 1, db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted)).Rows)
	require.Zero(t, db.Count(t, `select count(*) from message_live join message_done using (id)`))
}

// A redrive moves the row of an abandoned message from message_done to message_live.
func TestMessageIsConfirmedOrAbandonedWhileItIsRedriven(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	saveStuck(t, db, "confirmed", "abandoned")
	for key, change := range map[string]func(id task.ID) error{
		"confirmed": func(id task.ID) error {
			_, err := db.Messages.Confirm(t.Context(), id, storetest.ConfirmationBy("points"))
			return err
		},
		"abandoned": func(id task.ID) error {
			_, err := db.Messages.Abandon(t.Context(), id, storetest.Tester)
			return err
		},
	} {
		_, err := db.Messages.Abandon(t.Context(), idOf(key), storetest.Tester)
		require.NoError(t, err)
		results := make(chan error, 2)
		release := db.HoldLock(t, `lock table operator_actions in share mode`) // the redrive waits before its commit
		go func() {
			_, err := db.Messages.Redrive(t.Context(), idOf(key), storetest.Tester)
			results <- err
		}()
		db.AwaitLockWait(t)
		go func() { results <- change(idOf(key)) }()
		require.Eventually(t, func() bool {
			return db.Count(t, `select count(distinct pid) from pg_locks join pg_stat_activity using (pid) where not granted and datname = current_database()`) == 2
		}, time.Minute, time.Millisecond)
		release()
		require.NoError(t, <-results, key)
		require.NoError(t, <-results, key)
		require.Equal(t, map[string]string{"confirmed": "received", "abandoned": "abandoned"}[key], db.MustMessage(t, idOf(key)).State())
	}
}

func TestStuckMessagesAreRedrivenAndAbandonedInBulk(t *testing.T) {
	t.Parallel()
	db, ctx := storetest.Open(t), t.Context()
	saveStuck(t, db, "r1", "r2", "r3", "s1", "s2")
	db.MustSave(t, storetest.Message("fresh"))
	sending := msg.Sending
	count := func(f messages.StuckFilter) int {
		n, err := db.Messages.CountStuck(ctx, f)
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 5, count(messages.StuckFilter{}))
	require.Equal(t, 3, count(messages.StuckFilter{Status: &sending}))
	require.Equal(t, 1, count(messages.StuckFilter{Status: &sending, IDs: []task.ID{idOf("r1"), idOf("s1"), idOf("fresh")}}))
	require.Zero(t, count(messages.StuckFilter{OlderThan: time.Hour}))

	n, err := db.Messages.RedriveStuck(ctx, messages.StuckFilter{Status: &sending}, 2, storetest.Tester)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Len(t, stuckKeys(t, db, msg.Sending, 0), 1)
	n, err = db.Messages.AbandonStuck(ctx, messages.StuckFilter{}, 10, storetest.Tester)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Zero(t, count(messages.StuckFilter{}))
	require.Equal(t, 3, db.Count(t, `select count(*) from message_done where abandoned and finished_by = 'tester'`))
	require.Equal(t, 3, db.MakeDueAndRelay(t, storetest.Always(storetest.Accepted)).Rows, "two redriven messages and the fresh one")
	require.Equal(t, []string{"message.abandon"}, storetest.ActionNames(db.Actions(t, idOf("s1").String())))
	require.Equal(t, 2, db.Count(t, `select count(*) from operator_actions where action = 'message.redrive'`))
	n, err = db.Messages.RedriveStuck(ctx, messages.StuckFilter{}, 2, storetest.Tester)
	require.NoError(t, err)
	require.Zero(t, n)
}
