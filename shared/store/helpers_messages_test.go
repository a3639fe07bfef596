package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"

	msg "github.com/sendonce/sendonce/shared/message"
)

var takes = msg.Result{Outcome: msg.Taken}

// chat saves a message from one user to another.
func (db *DB) chat(t *testing.T, from, to, key string) task.ID {
	t.Helper()
	m := reliable(key, func(m *NewMessage) {
		m.From, m.To, m.Confirm = from, msg.Address{Kind: msg.User, Name: to}, false
	})
	db.mustSave(t, m)
	return m.ID
}

// broker is a publisher that remembers what it was given.
type broker struct {
	mu    sync.Mutex
	sends []DueMessage
	say   func(DueMessage) msg.Result
}

func (b *broker) publish(_ context.Context, due []DueMessage) ([]msg.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sends = append(b.sends, due...)
	return column(due, b.say), nil
}

func (b *broker) msgIDs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return column(b.sends, func(d DueMessage) string { return d.MsgID })
}

func (b *broker) sent() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sends)
}

func always(r msg.Result) *broker {
	return &broker{say: func(DueMessage) msg.Result { return r }}
}

var isAway = msg.Result{Outcome: msg.Away, Reason: "no more of this subject"}

var isFull = msg.Result{Outcome: msg.Away, Reason: "the stream is full", Scope: msg.OneStream}

var nobody = msg.Result{Outcome: msg.Away, Reason: "no connection", Scope: msg.AllStreams}

// reliable is a message to a subject that waits for one confirmation; change
// edits it.
func reliable(key string, change ...func(*NewMessage)) *NewMessage {
	m := &NewMessage{
		CallID: task.NewID(), From: "shop", ClientMsgID: key, To: msg.Address{Kind: msg.Subject, Name: "orders.paid"},
		Type: "order.paid.v1", Data: []byte(`{"order": 7, "b":1e400}`), Confirm: true, MaxSends: 2, ExpectedReceipts: 1,
	}
	for _, c := range change {
		c(m)
	}
	m.ID = task.ID(msg.ID(m.CallerID, m.From, m.ClientMsgID))
	m.Fingerprint, _ = task.Fingerprint(string(m.Data))
	return m
}

func (db *DB) mustConverse(t *testing.T, a, b string, after task.ID, limit int) Conversation {
	t.Helper()
	page, err := db.Conversation(t.Context(), a, b, after, limit)
	require.NoError(t, err)
	return page
}

func (db *DB) mustMessage(t *testing.T, id task.ID) MessageDetail {
	t.Helper()
	m, err := db.Message(t.Context(), id)
	require.NoError(t, err)
	return m
}

// mustSave gives the answers without their times, which it holds to the rows.
func (db *DB) mustSave(t *testing.T, rows ...*NewMessage) []SavedMessage {
	t.Helper()
	outs, errs := db.SubmitMessages(rows)
	for i, err := range errs {
		require.NoError(t, err)
		if outs[i].Refused == nil {
			require.True(t, outs[i].SavedAt.Equal(db.mustMessage(t, rows[i].ID).CreatedAt))
		}
		outs[i].SavedAt = time.Time{}
	}
	return outs
}

// send is the MsgID of a send, given as <epoch>.<number>.
func (m *NewMessage) send(name string) string {
	return fmt.Sprintf("%v.%x.%s", m.ID, m.Fingerprint[:4], name)
}

// archivedRows runs an archive and gives how many rows left each table that had some.
func (db *DB) archivedRows(t *testing.T, run ArchiveRun) map[string]int {
	t.Helper()
	rows := map[string]int{}
	for step, err := range db.Archive(t.Context(), run) {
		require.NoError(t, err)
		require.Empty(t, step.Failed)
		if step.Rows > 0 {
			rows[step.Table] += step.Rows
		}
	}
	return rows
}

// received saves messages, sends them and confirms each.
func (db *DB) received(t *testing.T, rows ...*NewMessage) {
	t.Helper()
	db.mustSave(t, rows...)
	db.relay(t, always(takes))
	for _, m := range rows {
		_, err := db.ReceiveMessage(t.Context(), m.ID, addressee("points"))
		require.NoError(t, err)
	}
}

// relay makes everything due and lets one relay send it.
func (db *DB) relay(t *testing.T, b *broker) Relayed {
	t.Helper()
	db.makeDue(t)
	relayed, err := db.RelayMessages(t.Context(), 100, b.publish)
	require.NoError(t, err)
	return relayed
}

// addressee is the word of one that the message is for.
func addressee(consumer string) Confirmation {
	return Confirmation{Consumer: consumer, Ground: msg.IsAddressee}
}

func (db *DB) makeDue(t *testing.T) {
	t.Helper()
	_, err := db.owner(t).Exec(t.Context(), `update message_live set next_at = now() - interval '1 second' where remaining_sends > 0`)
	require.NoError(t, err)
}
