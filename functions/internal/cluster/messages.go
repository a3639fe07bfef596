package cluster

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/inbox"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// StoredMessages returns the n messages that the stream MESSAGES holds, oldest first.
func StoredMessages(o *Cluster, n int) []*jetstream.RawStreamMsg {
	o.T.Helper()
	stream, err := o.JetStream().Stream(o.T.Context(), "MESSAGES")
	require.NoError(o.T, err)
	info, err := stream.Info(o.T.Context())
	require.NoError(o.T, err)
	require.EqualValues(o.T, n, info.State.Msgs)
	var all []*jetstream.RawStreamMsg
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(o.T.Context(), seq)
		require.NoError(o.T, err)
		all = append(all, m)
	}
	return all
}

// RequireSentOnce waits until all messages are final, requires that each of n messages to
// subjects was sent once and is in the stream once, and returns them from the stream.
func RequireSentOnce(o *Cluster, n int) []*jetstream.RawStreamMsg {
	o.T.Helper()
	Eventually(o.T, func() bool { return o.Admin.Count(`select count(*) from message_live`) == 0 })
	require.Equal(o.T, n, o.Admin.Count(`select count(*) from message_done d join messages m using (id)
		where m.kind = 0 and d.status = 1 and d.epoch = 1 and d.send_no = 1 and d.remaining_sends = m.max_sends - 1`), "one send each was used")
	messages, seen := StoredMessages(o, n), map[string]bool{}
	for _, m := range messages {
		seen[m.Header.Get("ce-id")] = true
	}
	require.Len(o.T, seen, n, "each is there once")
	return messages
}

// NewPointsService returns a receiver of orders with an inbox, and a count of its effects.
func NewPointsService(o *Cluster) (*inbox.Receiver, func() int) {
	o.T.Helper()
	db, err := pgxpool.New(o.T.Context(), sandbox.NewEmptyDatabase(o.T))
	require.NoError(o.T, err)
	o.T.Cleanup(db.Close)
	_, err = db.Exec(o.T.Context(), inbox.DDL+`create table effects (message_id text)`)
	require.NoError(o.T, err)
	caller := o.Admin.NewMessageReceiver("points", "msg.orders.>")
	confirmer := inbox.Confirmer{BaseURL: o.Client.BaseURL, User: caller.User, Password: caller.Password, Consumer: "points"}
	receiver := &inbox.Receiver{
		DB: db, Consumer: "points", Confirm: confirmer.Confirm,
		Effect: func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			_, err := tx.Exec(ctx, `insert into effects values ($1)`, m.ID)
			return err
		},
	}
	return receiver, func() (n int) {
		require.NoError(o.T, db.QueryRow(o.T.Context(), `select count(*) from effects`).Scan(&n))
		return n
	}
}

// Consume passes the messages of the stream MESSAGES to r.
func Consume(o *Cluster, r *inbox.Receiver, from jetstream.DeliverPolicy) jetstream.Consumer {
	o.T.Helper()
	consumer, err := o.JetStream().CreateConsumer(o.T.Context(), "MESSAGES",
		jetstream.ConsumerConfig{DeliverPolicy: from, AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(o.T, err)
	ctx := context.WithoutCancel(o.T.Context())
	running, err := consumer.Consume(func(m jetstream.Msg) {
		if _, err := r.Receive(ctx, inbox.Message{ID: m.Headers().Get("ce-id"), Data: m.Data()}); err == nil {
			_ = m.Ack() // if it is lost, the message is redelivered
		}
	})
	require.NoError(o.T, err)
	o.T.Cleanup(func() { running.Stop(); <-running.Closed() })
	return consumer
}

// InsertWaiting saves n messages to a subject at once, as many calls would.
func InsertWaiting(s *Client, n int) {
	s.T.Helper()
	s.Exec(`set session_replication_role = replica`) // skips foreign keys and triggers, which take long
	s.Exec(`with m as (
			insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
			select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 0, 'shop', g::text, 0, 'msg.orders.paid', 'order.paid', '{"order":4711}', false, 5, 1
			from generate_series(1, $1) g
			returning id
		)
		insert into message_live (id, kind, stream, remaining_sends) select id, 0, 'MESSAGES', 5 from m`, n)
}

// WaitAllSent waits until every message is final; meanwhile runs before each check.
func WaitAllSent(o *Cluster, meanwhile func()) {
	o.T.Helper()
	Eventually(o.T, func() bool {
		meanwhile()
		return o.Admin.Count(`select count(*) from message_live`) == 0
	}, "all are sent")
}

// MessagesIn returns how many messages a stream holds.
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
