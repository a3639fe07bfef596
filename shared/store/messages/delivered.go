package messages

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// noteDeliveredSQL stores the time in accepted_messages, where SaveAccepted reads it. Rows
// are written in the order of their ids, as SaveAccepted does, so that the two never deadlock.
// An event may name a message twice, but on conflict cannot update a row twice: hence distinct.
const noteDeliveredSQL = `
insert into accepted_messages as a (id, saved_at, delivered_at)
select distinct id, null::timestamptz, $2::timestamptz from unnest($1::uuid[]) as t (id) order by id
on conflict (id) do update set delivered_at = least(a.delivered_at, excluded.delivered_at)`

// These set the time of messages that are saved already. A message may change from live to
// final, or back, while they wait for its lock. So they run for live, done and live again.
const (
	deliveredLiveSQL = `
with l as materialized (
    select id from message_live where id = any($1::uuid[]) order by id for update
)
update message_live set delivered_at = $3
from l join unnest($1::uuid[], $2::uuid[]) as t (id, fingerprint) using (id)
cross join lateral (select fingerprint from messages where messages.id = t.id offset 0) m
where message_live.id = l.id and m.fingerprint = t.fingerprint and (message_live.delivered_at is null or message_live.delivered_at > $3)`
	deliveredDoneSQL = `
with d as materialized (
    select id from message_done where id = any($1::uuid[]) order by id for update
)
update message_done set delivered_at = $3
from d join unnest($1::uuid[], $2::uuid[]) as t (id, fingerprint) using (id)
cross join lateral (select fingerprint from messages where messages.id = t.id offset 0) m
where message_done.id = d.id and m.fingerprint = t.fingerprint and (message_done.delivered_at is null or message_done.delivered_at > $3)`
)

// RecordDelivered records when accepted messages, given by id and fingerprint, were delivered
// before they were saved. It may run before, after or during SaveAccepted: when both are done,
// the rows have the time. Of several times the earliest counts. A row that was saved under the
// same id for another message is not changed.
func (st *Store) RecordDelivered(ctx context.Context, ids []task.ID, fingerprints []task.Hash, at time.Time) error {
	// This is not in one transaction with the statements below, which may wait for a relay:
	// SaveAccepted would wait for these rows.
	if _, err := st.db.Hot.Exec(ctx, noteDeliveredSQL, ids, at); err != nil {
		return store.Wrap("record delivered messages", err)
	}
	var batch pgx.Batch
	batch.Queue(store.SetLockTimeoutSQL, messageLockTimeout)
	for _, sql := range []string{deliveredLiveSQL, deliveredDoneSQL, deliveredLiveSQL} {
		batch.Queue(sql, ids, fingerprints, at)
	}
	return store.Wrap("record delivered messages", st.db.Hot.SendBatch(ctx, &batch).Close())
}

const deliveredSQL = `select delivered_at from accepted_messages where id = $1`

// DeliveredAt returns when an accepted message that is not saved yet was delivered; zero if no
// delivery is recorded.
func (st *Store) DeliveredAt(ctx context.Context, id task.ID) (time.Time, error) {
	var at *time.Time
	err := st.db.Hot.QueryRow(ctx, deliveredSQL, id).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return store.OrZero(at), store.Wrap("delivered message", err)
}

// deliveredKept is how long the time of a delivery waits for its message to be saved, and
// senderKept how long the sender of a poisoned message waits for its acknowledgement to be
// published.
const (
	deliveredKept = 30 * 24 * time.Hour
	senderKept    = 24 * time.Hour
)

const forgetDeliveredSQL = `
delete from accepted_messages
where accept_seq is null and (delivered_at < now() - make_interval(secs => $1) or saved_at < now() - make_interval(secs => $2))`

// ForgetDelivered removes times of deliveries whose messages were never saved, or were saved and
// purged before the time was recorded. It also removes the rows of poisoned messages that the
// stream no longer has, a day after they were rejected.
func (st *Store) ForgetDelivered(ctx context.Context) error {
	_, err := st.db.Hot.Exec(ctx, forgetDeliveredSQL, store.Unprepared, deliveredKept.Seconds(), senderKept.Seconds())
	return store.Wrap("forget delivered messages", err)
}
