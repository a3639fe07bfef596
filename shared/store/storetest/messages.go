package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

// The results that a Broker returns.
var (
	Accepted    = msg.Result{Outcome: msg.Accepted}
	SubjectFull = msg.Result{Outcome: msg.Unavailable, Reason: "no more of this subject", Scope: msg.OneMessage}
	StreamFull  = msg.Result{Outcome: msg.Unavailable, Reason: "the stream is full", Scope: msg.OneStream}
	NoBroker    = msg.Result{Outcome: msg.Unavailable, Reason: "no connection", Scope: msg.AllStreams}
)

// Chat saves a message without confirmation from one user to another, and returns its id.
func (db *DB) Chat(t *testing.T, from, to, key string) task.ID {
	t.Helper()
	m := Message(key, func(m *messages.Submission) {
		m.From, m.To, m.Confirm = from, msg.Address{Kind: msg.User, Name: to}, false
	})
	db.MustSave(t, m)
	return m.ID
}

// Broker records the sends of messages that are published to it, and returns the results of Respond.
type Broker struct {
	mu      sync.Mutex
	Sends   []messages.Due
	Respond func(messages.Due) msg.Result
}

func (b *Broker) Publish(_ context.Context, due []messages.Due) ([]msg.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Sends = append(b.Sends, due...)
	return store.Column(due, b.Respond), nil
}

func (b *Broker) MsgIDs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return store.Column(b.Sends, func(d messages.Due) string { return d.MsgID })
}

func (b *Broker) Sent() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.Sends)
}

// Always returns a broker that responds to each message with r.
func Always(r msg.Result) *Broker {
	return &Broker{Respond: func(messages.Due) msg.Result { return r }}
}

// Message returns the submission of a message to a subject, with one required confirmation; change edits it.
func Message(key string, change ...func(*messages.Submission)) *messages.Submission {
	m := &messages.Submission{
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

func (db *DB) MustConverse(t *testing.T, a, b string, after task.ID, limit int) messages.Conversation {
	t.Helper()
	page, err := db.Messages.Conversation(t.Context(), a, b, after, limit)
	require.NoError(t, err)
	return page
}

func (db *DB) MustMessage(t *testing.T, id task.ID) messages.Detail {
	t.Helper()
	m, err := db.Messages.ByID(t.Context(), id)
	require.NoError(t, err)
	return m
}

// MustSave saves messages and returns the results. It checks SavedAt of each result that is no refusal against the database, and then
// sets SavedAt of all results to zero, so that tests can compare the results.
func (db *DB) MustSave(t *testing.T, subs ...*messages.Submission) []messages.Submitted {
	t.Helper()
	outs, errs := db.Messages.Submit(subs)
	for i, err := range errs {
		require.NoError(t, err)
		if outs[i].Refused == nil {
			require.True(t, outs[i].SavedAt.Equal(db.MustMessage(t, subs[i].ID).CreatedAt))
		}
		outs[i].SavedAt = time.Time{}
	}
	return outs
}

// MsgID returns the MsgID of a send of a message; send is <epoch>.<number>, such as 1.1.
func MsgID(m *messages.Submission, send string) string {
	return fmt.Sprintf("%v.%x.%s", m.ID, m.Fingerprint[:4], send)
}

// SaveReceived saves messages, sends them and confirms each as the consumer "points".
func (db *DB) SaveReceived(t *testing.T, subs ...*messages.Submission) {
	t.Helper()
	db.MustSave(t, subs...)
	db.MakeDueAndRelay(t, Always(Accepted))
	for _, m := range subs {
		_, err := db.Messages.Confirm(t.Context(), m.ID, ConfirmationBy("points"))
		require.NoError(t, err)
	}
}

// MakeDueAndRelay makes all messages due that have sends left, and relays one batch.
func (db *DB) MakeDueAndRelay(t *testing.T, b *Broker) store.Relayed {
	t.Helper()
	db.MakeDue(t)
	return db.RelayDue(t, b)
}

// ConfirmationBy returns a confirmation by a consumer with the permission of a recipient.
func ConfirmationBy(consumer string) messages.Confirmation {
	return messages.Confirmation{Consumer: consumer, Permission: msg.IsRecipient}
}

// MakeDue makes all messages due that have sends left.
func (db *DB) MakeDue(t *testing.T) {
	t.Helper()
	db.Exec(t, `update message_live set next_at = now() - interval '1 second' where remaining_sends > 0`)
}

// RelayDue relays one batch of due messages.
func (db *DB) RelayDue(t *testing.T, b *Broker) store.Relayed {
	t.Helper()
	relayed, err := db.Messages.Relay(t.Context(), 100, messages.Held{}, b.Publish)
	require.NoError(t, err)
	return relayed
}

// InsertMessages inserts n messages to the user bob at once, as if they had been submitted.
func (db *DB) InsertMessages(t *testing.T, n int) {
	t.Helper()
	db.Exec(t, fmt.Sprintf(`
set local session_replication_role = replica;
insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
	select g, g, g, 0, 'shop', g::text, 2, 'bob', 'b', '1', false, 5, 1 from (select gen_random_uuid() from generate_series(1, %d)) r (g);
insert into message_live (id, kind, stream, remaining_sends) select id, kind, 'USERS', 5 from messages where destination = 'bob'`, n))
}

func SendTo(kind msg.Kind, name string) func(*messages.Submission) {
	return func(m *messages.Submission) { m.To = msg.Address{Kind: kind, Name: name} }
}
