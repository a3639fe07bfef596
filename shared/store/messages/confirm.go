package messages

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// recipientSQL: status 0 = sending. The numbers of first_send are those of msg.FirstSend.
const recipientSQL = `
select kind, destination, confirm_token,
    coalesce((select case when l.status > 0 or l.delivered_at is not null then 2 when l.next_at is not null then 1 else 0 end
        from message_live l where l.id = m.id), 2) as first_send,
    exists (select from message_receipts r where r.message_id = m.id and r.consumer = $2) as is_confirmed
from messages m where id = $1
union all
select kind, destination, confirm_token, 2, false from archived_messages where id = $1`

// Recipient is where a message is sent, and what a confirmation by one consumer would find.
type Recipient struct {
	To        msg.Address
	Token     []byte        // the confirm token of a message to a URL; nil = it has none, or none yet
	FirstSend msg.FirstSend // as for msg.IsRecipient if the message is live; msg.WasSent if it is final, even if it was never sent
	Confirmed bool          // the consumer has confirmed the message; false if the message is archived
}

// Recipient returns the Recipient of a saved message. found is false if there is no such message. Recipient waits
// for no lock, so its duration reveals nothing to a caller that may not confirm the message.
func (st *Store) Recipient(ctx context.Context, id task.ID, consumer string) (r Recipient, found bool, err error) {
	err = store.QueryEach(ctx, st.db.Hot, recipientSQL, []any{id, consumer}, []any{&r.To.Kind, &r.To.Name, &r.Token, &r.FirstSend, &r.Confirmed}, func() {
		found = true
	})
	return r, found, store.Wrap("recipient", err)
}

// AwaitReceipt returns when the synchronous standby, if there is one, has the receipt that Recipient has found. Confirm waits
// for this, too.
func (st *Store) AwaitReceipt(ctx context.Context) error {
	return store.Wrap("await receipt", st.db.WaitForStandby(ctx))
}

// maxAwaitPause limits the pauses of AwaitSend before its queries: they double from 10 ms to 640 ms, together 1.3 s.
const maxAwaitPause = time.Second

// AwaitSend waits while the first send of a message may have happened and is not recorded (msg.MaybeSent): a receiver often
// confirms a message before the relay has committed the send. The error is task.CodeServerBusy if this lasts for 1.3 s.
// AwaitSend takes no lock: the relay skips locked messages, so with a lock one receiver could delay the send to all others.
func (st *Store) AwaitSend(ctx context.Context, id task.ID) error {
	for pause := 10 * time.Millisecond; pause < maxAwaitPause; pause *= 2 {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return store.Wrap("await send", context.Cause(ctx))
		}
		r, _, err := st.Recipient(ctx, id, "")
		if err != nil || r.FirstSend != msg.MaybeSent {
			return err
		}
	}
	return errNotSentYet()
}

// confirmTokensSQL creates the token of a message only once, so all deliveries of the message have the same
// token.
const confirmTokensSQL = `
with l as materialized (
    select id, confirm_token from messages where id = any($1::uuid[]) order by id for update
), created as (
    update messages set confirm_token = uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
    where id = any(array(select id from l where confirm_token is null))
    returning id, confirm_token
)
select id, coalesce(created.confirm_token, l.confirm_token) from l left join created using (id)`

// ConfirmTokens returns the confirm tokens of messages. It creates missing tokens, with 244 random bits each.
func (st *Store) ConfirmTokens(ctx context.Context, ids []task.ID) (map[task.ID][]byte, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	tokens := make(map[task.ID][]byte, len(ids))
	var id task.ID
	var token []byte
	err := store.QueryEach(ctx, st.db.Hot, confirmTokensSQL, []any{ids}, []any{&id, &token}, func() {
		tokens[id] = token
	})
	return tokens, store.Wrap("confirm tokens", err)
}

// Confirmation says that a consumer has received a message.
type Confirmation struct {
	Consumer   string
	Permission msg.Permission
	By         store.Operator // for the audit entry of a confirmation by an admin
}

// errNotSentYet is the error of a confirmation while the first send may have happened but is not recorded yet.
func errNotSentYet() error {
	return &task.Error{
		Code:       task.CodeServerBusy,
		Message:    "the send of this message is not recorded yet; confirm it again later",
		RetryAfter: time.Second,
	}
}

const consumersSQL = `select consumer from message_receipts where message_id = $1`

const insertReceiptSQL = `insert into message_receipts (message_id, consumer, send_no) values ($1, $2, $3)`

// Confirm records a confirmation and returns the changed message. A consumer counts once, however often it
// confirms. A message can be confirmed at any time after its first send, even when it is abandoned or archived. The error
// is task.CodeNotFound if there is no such message or the message was never sent. It is task.CodeServerBusy while
// the first send may be in progress, or if another transaction keeps the message locked for 4 s.
func (st *Store) Confirm(ctx context.Context, id task.ID, c Confirmation) (after msg.Message, err error) {
	err = st.db.RetryLostCommit(ctx, func(bool) error {
		conn, err := st.db.Hot.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		return untilLocked(func() error {
			after, err = confirmOnce(ctx, conn.Conn(), id, c)
			return store.WrapConnectionLost(conn.Conn(), store.RollbackOn(conn.Conn(), err))
		})
	})
	return after, store.Wrap("confirm message", err)
}

// decide returns the message after the confirmation. consumers have confirmed the message before. If c.Consumer is one of
// them, repeated is true and the message is not changed.
func (c Confirmation) decide(m msg.Message, consumers []string) (after msg.Message, repeated bool, err error) {
	switch m.FirstSend(c.Permission) {
	case msg.NotSent:
		return m, false, errNoMessage()
	case msg.MaybeSent:
		return m, false, errNotSentYet()
	}
	if slices.Contains(consumers, c.Consumer) {
		return m, true, nil
	}
	return m.Receive(c.Consumer, len(consumers)+1), false, nil
}

// queueAudit adds an audit entry if an admin confirms.
func (c Confirmation) queueAudit(batch *pgx.Batch, id task.ID, before, after msg.Message) {
	if c.Permission == msg.ByOperator {
		c.By.QueueAudit(batch, "message.receive", id.String(), messageJSON(before), store.MustJSON(map[string]any{
			"state": after.State(), "status": after.Status, "consumer": c.Consumer,
		}))
	}
}

// confirmOnce reads the receipts while it holds the row lock of the message: no other confirmation or relay of
// this message runs at the same time.
func confirmOnce(ctx context.Context, conn *pgx.Conn, id task.ID, c Confirmation) (msg.Message, error) {
	var consumers []string
	var batch pgx.Batch
	batch.Queue("begin")
	locked := queueMessageLock(&batch, id)
	batch.Queue(consumersSQL, id).Query(func(rows pgx.Rows) (err error) {
		consumers, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return msg.Message{}, err
	}
	m, err := locked.get(id)
	if task.CodeOf(err) == task.CodeNotFound {
		if err := store.Commit(ctx, conn); err != nil {
			return m.Message, err
		}
		return confirmArchived(ctx, conn, id, c)
	}
	if err != nil {
		return m.Message, err
	}
	after, repeated, err := c.decide(m.Message, consumers)
	if err != nil {
		return m.Message, err
	}
	batch = pgx.Batch{}
	if !repeated {
		batch.Queue(insertReceiptSQL, id, c.Consumer, m.SendNo)
		c.queueAudit(&batch, id, m.Message, after)
	}
	queueMessageChanges(&batch, []messageChange{{id, m.Message, after}})
	batch.Queue("commit")
	return after, conn.SendBatch(ctx, &batch).Close()
}

const lockArchivedMessageSQL = archivedMessageSQL + ` for update of m`

const confirmArchivedSQL = `
update archived_messages set status = $2, abandoned = $3, finished_by = nullif($4, ''),
    finished_at = case when (status, abandoned) = ($2, $3) then finished_at else now() end,
    receipts = receipts || jsonb_build_object('consumer', $5::text, 'confirmedAt', now(), 'sendNo', send_no)
where id = $1`

func confirmArchived(ctx context.Context, conn *pgx.Conn, id task.ID, c Confirmation) (after msg.Message, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		m, err := messageByID(ctx, tx, lockArchivedMessageSQL, id)
		if err != nil {
			return err
		}
		var repeated bool
		after, repeated, err = c.decide(m.Message, store.Column(m.Receipts, func(r Receipt) string { return r.Consumer }))
		if err != nil || repeated {
			return err
		}
		var batch pgx.Batch
		batch.Queue(confirmArchivedSQL, id, int16(after.Status), after.Abandoned, store.Storable(after.FinishedBy), c.Consumer)
		c.queueAudit(&batch, id, m.Message, after)
		return tx.SendBatch(ctx, &batch).Close()
	})
	return after, err
}
