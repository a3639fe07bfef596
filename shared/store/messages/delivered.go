package messages

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// noteDeliveredSQL stores the time in accepted_messages, where SaveAccepted reads it. Both write the rows in
// the order of their ids, so two calls never deadlock. A message may be given twice, but "on conflict" cannot
// update a row twice: hence distinct.
const noteDeliveredSQL = `
insert into accepted_messages as a (id, saved_at, delivered_at)
select distinct id, null::timestamptz, $2::timestamptz from unnest($1::uuid[]) as t (id) order by id
on conflict (id) do update set delivered_at = least(a.delivered_at, excluded.delivered_at)`

// deliveredLiveSQL and deliveredDoneSQL set the time of messages that are saved already.
const (
	deliveredLiveSQL = `with l as materialized (select id from message_live` + lockDelivered + `update message_live` + setDelivered
	deliveredDoneSQL = `with l as materialized (select id from message_done` + lockDelivered + `update message_done` + setDelivered

	lockDelivered = ` where id = any($1::uuid[]) order by id for update)
`
	setDelivered = ` s set delivered_at = $3
from l join unnest($1::uuid[], $2::uuid[]) as t (id, fingerprint) using (id)
cross join lateral (select fingerprint from messages where messages.id = t.id offset 0) m
where s.id = l.id and m.fingerprint = t.fingerprint and (s.delivered_at is null or s.delivered_at > $3)
returning s.id`
)

// forgetNotedSQL removes rows that noteDeliveredSQL inserted: their messages now have the time in message_live or
// message_done. MarkPurged would never remove these rows, because they have no sequence number.
const forgetNotedSQL = `
delete from accepted_messages where id = any(array(
    select id from accepted_messages where id = any($1::uuid[]) and saved_at is null order by id for update))`

// RecordDelivered records the delivery time of accepted messages that were delivered before they were saved. ids and
// fingerprints identify the messages. RecordDelivered may run before, after or during SaveAccepted: when both have
// returned, the messages have the time. The earliest of several times counts. If a message with another fingerprint is
// already saved under the id, RecordDelivered does not change it.
func (st *Store) RecordDelivered(ctx context.Context, ids []task.ID, fingerprints []task.Hash, at time.Time) error {
	// This is a transaction of its own. The statements below may wait for row locks that Relay holds while it publishes. In
	// one transaction with them, this statement would keep its rows locked for as long, and SaveAccepted would have to wait.
	if _, err := st.db.Hot.Exec(ctx, noteDeliveredSQL, ids, at); err != nil {
		return store.Wrap("record delivered messages", err)
	}
	var batch pgx.Batch
	changed := map[task.ID]bool{} // messages whose row in message_live or message_done got the time in this call
	batch.Queue(store.SetLockTimeoutSQL, messageLockTimeout)
	// While a statement waits for a lock, a message may change from live to final or back.
	for _, sql := range []string{deliveredLiveSQL, deliveredDoneSQL, deliveredLiveSQL} {
		batch.Queue(sql, ids, fingerprints, at).Query(store.CollectSet(changed))
	}
	err := st.db.Hot.SendBatch(ctx, &batch).Close()
	if err == nil && len(changed) > 0 {
		_, err = st.db.Hot.Exec(ctx, forgetNotedSQL, store.Unprepared, slices.Collect(maps.Keys(changed)))
	}
	return store.Wrap("record delivered messages", err)
}

const deliveredSQL = `select delivered_at from accepted_messages where id = $1`

// DeliveredAt returns the delivery time of an accepted message that is not saved yet; zero if none is recorded.
func (st *Store) DeliveredAt(ctx context.Context, id task.ID) (time.Time, error) {
	var at *time.Time
	err := st.db.Hot.QueryRow(ctx, deliveredSQL, id).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return store.OrZero(at), store.Wrap("read delivery time", err)
}

const (
	deliveredKept = 30 * 24 * time.Hour // a row with a delivery time and without a sequence number, mostly of a message that was never saved
	poisonedKept  = 24 * time.Hour      // the row of a poisoned message: long enough for the relay, which reads the sender from it, to publish the acknowledgement
)

// forgetDeliveredSQL removes a limited number of rows, so that it always ends before the statement timeout.
const forgetDeliveredSQL = `
delete from accepted_messages where id = any(array(
    select id from accepted_messages
    where accept_seq is null and (delivered_at < now() - make_interval(secs => $1) or saved_at < now() - make_interval(secs => $2))
    limit 10000 for update skip locked))`

// ForgetDelivered removes at most 10,000 rows of accepted_messages that have no sequence number: those with a delivery time
// older than 30 days, and those of poisoned messages that were rejected more than a day ago and have left the stream.
func (st *Store) ForgetDelivered(ctx context.Context) error {
	_, err := st.db.Hot.Exec(ctx, forgetDeliveredSQL, store.Unprepared, deliveredKept.Seconds(), poisonedKept.Seconds())
	return store.Wrap("forget delivered messages", err)
}
