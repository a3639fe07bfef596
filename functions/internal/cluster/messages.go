package cluster

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/inbox"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// StoredMessages requires that the stream MESSAGES has n messages, and returns them, oldest first.
func StoredMessages(c *Cluster, n int) []*jetstream.RawStreamMsg {
	c.T.Helper()
	all := c.stored("MESSAGES")
	require.Len(c.T, all, n)
	return all
}

// RequireSentOnce waits until all messages are final, and requires that there are n messages to subjects, that each was sent
// once, and that the stream MESSAGES has each once. It returns the messages of this stream.
func RequireSentOnce(c *Cluster, n int) []*jetstream.RawStreamMsg {
	c.T.Helper()
	c.Admin.WaitCount(0, `select count(*) from message_live`)
	require.Equal(c.T, n, c.Admin.Count(`select count(*) from message_done d join messages m using (id)
		where m.kind = $1 and d.status = $2 and d.epoch = 1 and d.send_no = 1 and d.remaining_sends = m.max_sends - 1`,
		int16(message.Subject), int16(message.Sent)), "each message used one send")
	messages, ids := StoredMessages(c, n), map[string]bool{}
	for _, m := range messages {
		ids[m.Header.Get("ce-id")] = true
	}
	require.Len(c.T, ids, n, "the stream has each message once")
	return messages
}

// NewPointsService returns a receiver that processes each order message once (package inbox), and a function that
// counts the effects.
func NewPointsService(c *Cluster) (*inbox.Receiver, func() int) {
	c.T.Helper()
	db, err := pgxpool.New(c.T.Context(), sandbox.NewEmptyDatabase(c.T))
	require.NoError(c.T, err)
	c.T.Cleanup(db.Close)
	_, err = db.Exec(c.T.Context(), inbox.DDL+`create table effects (message_id text)`)
	require.NoError(c.T, err)
	caller := c.Admin.NewMessageReceiver("points", "msg.orders.>")
	confirmer := inbox.Confirmer{BaseURL: c.Client.BaseURL, User: caller.User, Password: caller.Password, Consumer: "points"}
	receiver := &inbox.Receiver{
		DB: db, Consumer: "points", Confirm: confirmer.Confirm,
		Effect: func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			_, err := tx.Exec(ctx, `insert into effects values ($1)`, m.ID)
			return err
		},
	}
	return receiver, func() (n int) {
		require.NoError(c.T, db.QueryRow(c.T.Context(), `select count(*) from effects`).Scan(&n))
		return n
	}
}

// Consume passes the messages of the stream MESSAGES to r until the test ends. from says with which message it begins.
func Consume(c *Cluster, r *inbox.Receiver, from jetstream.DeliverPolicy) jetstream.Consumer {
	c.T.Helper()
	consumer, err := c.JetStream().CreateConsumer(c.T.Context(), "MESSAGES",
		jetstream.ConsumerConfig{DeliverPolicy: from, AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(c.T, err)
	ctx := context.WithoutCancel(c.T.Context())
	running, err := consumer.Consume(func(m jetstream.Msg) {
		if _, err := r.Receive(ctx, inbox.Message{ID: m.Headers().Get("ce-id"), Data: m.Data()}); err == nil {
			_ = m.Ack() // if the acknowledgement is lost, the message is redelivered
		}
	})
	require.NoError(c.T, err)
	c.T.Cleanup(func() { running.Stop(); <-running.Closed() })
	return consumer
}

// InsertWaiting inserts n messages that are due to be sent to a subject, in one statement.
func InsertWaiting(s *Client, n int) {
	s.T.Helper()
	s.Exec(`set session_replication_role = replica`) // skips foreign keys and triggers, which are slow
	s.Exec(`with m as (
			insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
			select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 0, 'shop', g::text, 0, 'msg.orders.paid', 'order.paid', '{"order":4711}', false, 5, 1
			from generate_series(1, $1) g
			returning id
		)
		insert into message_live (id, kind, stream, remaining_sends) select id, 0, 'MESSAGES', 5 from m`, n)
	s.Exec(`reset session_replication_role`)
}

// WaitAllSent waits until every message is final. It calls beforeCheck before each check.
func WaitAllSent(c *Cluster, beforeCheck func()) {
	c.T.Helper()
	Eventually(c.T, func() bool {
		beforeCheck()
		return c.Admin.Count(`select count(*) from message_live`) == 0
	}, "all are sent")
}

// MessagesIn returns how many messages a stream has.
func (c *Cluster) MessagesIn(stream string) int {
	c.T.Helper()
	s, err := c.JetStream().Stream(c.T.Context(), stream)
	require.NoError(c.T, err)
	return int(s.CachedInfo().State.Msgs)
}

// SendTo submits a message to an address under the client_msg_id m-<key>.
func SendTo(s *Client, key int, to, data string) Reply {
	return s.Post(MessagesPath, fmt.Sprintf(`{"client_msg_id":"m-%d","to":%q,"data":%q}`, key, to, data))
}
