package messages

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Saving is the result of saving an accepted message.
type Saving int8

const (
	SavedNow     Saving = iota
	SavedBefore         // the message was saved already
	SaveRejected        // the client_msg_id was used for another message: this message is not saved, and its sender is notified
	SavePoisoned        // the database can never store the message: it is a dead letter, and its sender is notified
)

// savingParts is into how many parts SaveAccepted divides messages that cannot be saved together.
const savingParts = 8

// SaveAccepted saves messages that a stream has accepted and, in the same transaction, the acknowledgements to their
// senders. The rows must be in the order of the stream. If single rows may have made the transaction fail
// (store.IsRowError), SaveAccepted saves parts of them, and parts of these, until each message that fails is in a transaction of
// its own. After an error, repeat the call with the same rows: no message is lost or saved twice, but an acknowledgement may be
// sent again.
func (st *Store) SaveAccepted(ctx context.Context, rows []*Submission) ([]Saving, error) {
	out, err := st.saveAccepted(ctx, rows)
	if len(rows) == 1 && store.IsPoison(err) {
		return []Saving{SavePoisoned}, store.Wrap("add the dead letter of an accepted message", st.addDeadLetter(ctx, rows[0], err.Error()))
	}
	if len(rows) < 2 || !store.IsRowError(err) {
		return out, store.Wrap("save accepted messages", err)
	}
	out = make([]Saving, 0, len(rows))
	for part := range slices.Chunk(rows, (len(rows)+savingParts-1)/savingParts) {
		saving, err := st.SaveAccepted(ctx, part)
		if err != nil {
			return nil, err
		}
		out = append(out, saving...)
	}
	return out, nil
}

// addDeadLetter stores a poisoned message as a dead letter, with the acknowledgement "rejected" for its sender.
func (st *Store) addDeadLetter(ctx context.Context, m *Submission, reason string) error {
	notifier := st.db.NewNotifier()
	err := pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		var batch pgx.Batch
		store.QueueDeadLetter(&batch, store.DeadLetter{
			Function: "save", EventID: m.ID.String(), EventType: m.Type, Event: string(m.Data), Reason: reason, Attempts: 1,
		})
		batch.Queue(rememberPoisonedSQL, m.AcceptSeq, m.ID, store.Storable(m.From), store.Storable(m.ClientMsgID))
		notifier.CountRows(batch.Queue(insertAcksSQL, store.KindMessageRejected, []task.ID{m.ID}, []int64{m.CallerID}))
		return tx.SendBatch(ctx, &batch).Close()
	})
	return notifier.Notify(err)
}

const (
	rememberPoisonedSQL = `
insert into accepted_messages (accept_seq, id, sender, client_msg_id) values ($1, $2, $3, $4)
on conflict (id) do update set accept_seq = excluded.accept_seq, saved_at = now(), sender = excluded.sender, client_msg_id = excluded.client_msg_id`
	// rememberAcceptedSQL stores the sequence numbers of messages. It also copies the delivery times that RecordDelivered
	// has stored in accepted_messages to the live or final rows of the messages. RecordDelivered and this statement write
	// the same row of accepted_messages for each id, so the later write sees the earlier one.
	rememberAcceptedSQL = `
with t as materialized (
    select * from unnest($1::bigint[], $2::uuid[], $3::uuid[]) as t (seq, id, fingerprint)
), a as (
    insert into accepted_messages (accept_seq, id) select max(seq), id from t group by id order by id
    on conflict (id) do update set accept_seq = excluded.accept_seq, saved_at = now()
    returning id, delivered_at
), d as materialized (
    select a.id, a.delivered_at from a
    where a.delivered_at is not null and exists (
        select from t cross join lateral (select fingerprint from messages where messages.id = t.id offset 0) m
        where t.id = a.id and m.fingerprint = t.fingerprint)
), done as (
    update message_done set delivered_at = least(message_done.delivered_at, d.delivered_at) from d where message_done.id = d.id
)
update message_live set delivered_at = least(message_live.delivered_at, d.delivered_at) from d where message_live.id = d.id`
	// insertAcksSQL inserts one row for each caller, so that the relay publishes the acknowledgements of the callers in turn.
	insertAcksSQL = `
insert into event_outbox (kind, caller_id, ids)
select $1, caller_id, array_agg(id order by n) from unnest($2::uuid[], $3::bigint[]) with ordinality as t (id, caller_id, n) group by caller_id`
)

func (st *Store) saveAccepted(ctx context.Context, rows []*Submission) (out []Saving, err error) {
	for i, m := range rows {
		m.ahead = time.Duration(len(rows)-1-i) * time.Microsecond
	}
	notifier := st.db.NewNotifier()
	err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		inserted := map[task.ID]time.Time{}
		toInsert := rowsToInsert(rows)
		var batch pgx.Batch
		queueNewMessages(&batch, toInsert, inserted)
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return err
		}
		fingerprints, seqs, err := savedFingerprints(ctx, tx, toInsert, inserted)
		if err != nil {
			return err
		}
		out = savingResults(rows, inserted, fingerprints)
		batch = pgx.Batch{}
		queueAcks(&batch, notifier, rows, out, seqs)
		queueUnsaved(&batch, rows, out, seqs)
		queueStreamUsage(&batch, usageOfAccepted(rows, out, seqs))
		return tx.SendBatch(ctx, &batch).Close()
	})
	return out, notifier.Notify(err)
}

const savedBeforeSQL = `
select m.id, m.fingerprint, coalesce(a.accept_seq, 0)
from (
    select id, fingerprint from messages where id = any($1::uuid[])
    union all
    select id, fingerprint from archived_messages where id = any($1::uuid[])
) m
left join lateral (
    select accept_seq from accepted_messages where accepted_messages.id = m.id and saved_at is not null offset 0
) a on true`

// savedFingerprints returns the fingerprint of the message that is saved under the id of each row, by this transaction
// (inserted) or before. For a message that was saved before, it also returns the sequence number in accepted_messages;
// 0 = none.
func savedFingerprints(ctx context.Context, tx pgx.Tx, rows []*Submission, inserted map[task.ID]time.Time) (
	fingerprints map[task.ID]task.Hash, seqs map[task.ID]int64, err error,
) {
	fingerprints, seqs = make(map[task.ID]task.Hash, len(rows)), map[task.ID]int64{}
	var before []task.ID
	for _, m := range rows {
		if _, isNew := inserted[m.ID]; isNew {
			fingerprints[m.ID] = m.Fingerprint
		} else {
			before = append(before, m.ID)
		}
	}
	if len(before) == 0 {
		return fingerprints, seqs, nil
	}
	var id task.ID
	var fingerprint task.Hash
	var seq int64
	err = store.QueryEach(ctx, tx, savedBeforeSQL, []any{before}, []any{&id, &fingerprint, &seq}, func() {
		fingerprints[id], seqs[id] = fingerprint, seq
	})
	return fingerprints, seqs, err
}

// savingResults returns the result of each row. Of several rows of one message, only the first is SavedNow:
// savingResults then removes the id from inserted.
func savingResults(rows []*Submission, inserted map[task.ID]time.Time, fingerprints map[task.ID]task.Hash) []Saving {
	out := make([]Saving, len(rows))
	for i, m := range rows {
		switch {
		case fingerprints[m.ID] != m.Fingerprint:
			out[i] = SaveRejected
		case !inserted[m.ID].IsZero():
			delete(inserted, m.ID) // out[i] is SavedNow
		default:
			out[i] = SavedBefore
		}
	}
	return out
}

// usageOfAccepted returns how many bytes the stream of accepted messages stored for each caller, including rejected and
// repeated messages. If a call of SaveAccepted is repeated, the same sequence numbers are not counted again.
func usageOfAccepted(rows []*Submission, out []Saving, seqs map[task.ID]int64) streamUsage {
	usage := streamUsage{}
	for i, m := range rows {
		if out[i] == SavedNow || m.AcceptSeq > seqs[m.ID] {
			usage.add(StreamAccepted, m.CallerID, len(m.Data))
		}
	}
	return usage
}

// addUnsavedSQL adds to the rows of this minute. It sorts its input, so that two transactions never deadlock.
const addUnsavedSQL = `
insert into inbox_unsaved as r (user_name, sender, since, messages)
select user_name, sender, date_trunc('minute', now()), count(*) from unnest($1::text[], $2::text[]) as t (user_name, sender)
group by user_name, sender order by user_name, sender
on conflict (user_name, sender, since) do update set messages = least(r.messages, 1000000000000000000) + excluded.messages`

// queueUnsaved counts the messages to users that are rejected or repeats of saved messages, for the senders' shares of inboxes:
// they may have been delivered before this call. If a call of SaveAccepted is repeated, the same sequence numbers are not
// counted again.
func queueUnsaved(batch *pgx.Batch, rows []*Submission, out []Saving, seqs map[task.ID]int64) {
	var users, senders []string
	for i, m := range rows {
		if out[i] != SavedNow && m.To.Kind == msg.User && m.AcceptSeq > seqs[m.ID] {
			users, senders = append(users, m.To.Name), append(senders, m.From)
		}
	}
	if len(users) > 0 {
		batch.Queue(addUnsavedSQL, users, senders)
	}
}

// queueAcks adds the statements that store the acknowledgements to the senders, and the sequence numbers of the
// messages. If a message was saved before with the same sequence number, the stream has delivered the same entry a second
// time: the acknowledgement is stored already.
func queueAcks(batch *pgx.Batch, notifier *store.Notifier, rows []*Submission, out []Saving, seqs map[task.ID]int64) {
	acks := map[string][]*Submission{}
	for i, m := range rows {
		switch {
		case out[i] == SaveRejected:
			acks[store.KindMessageRejected] = append(acks[store.KindMessageRejected], m)
		case out[i] == SavedNow || seqs[m.ID] != m.AcceptSeq:
			acks[store.KindMessageSaved] = append(acks[store.KindMessageSaved], m)
		}
	}
	batch.Queue(rememberAcceptedSQL, store.Column(rows, func(m *Submission) int64 { return m.AcceptSeq }), store.Column(rows, func(m *Submission) task.ID { return m.ID }),
		store.Column(rows, func(m *Submission) task.Hash { return m.Fingerprint }))
	for kind, messages := range acks {
		notifier.CountRows(batch.Queue(insertAcksSQL, kind, store.Column(messages, func(m *Submission) task.ID { return m.ID }), store.Column(messages, func(m *Submission) int64 { return m.CallerID })))
	}
}

const purgeCandidatesSQL = `
select id, accept_seq from accepted_messages where accept_seq is not null and saved_at <= now() - make_interval(secs => $1) order by accept_seq limit $2`

// AcceptedSeq is an accepted message with its sequence number in the stream.
type AcceptedSeq struct {
	ID  task.ID
	Seq int64
}

// PurgeCandidates returns the messages in the stream that were saved or rejected at least window ago: up to limit, those
// with the lowest sequence numbers. It returns when the synchronous standby, if there is one, has these messages too.
func (st *Store) PurgeCandidates(ctx context.Context, window time.Duration, limit int) ([]AcceptedSeq, error) {
	candidates, err := store.QueryRows(ctx, st.db.Hot, pgx.RowToStructByPos[AcceptedSeq], purgeCandidatesSQL, store.Unprepared, window.Seconds(), limit)
	if err == nil && len(candidates) > 0 {
		err = st.db.WaitForStandby(ctx)
	}
	return candidates, store.Wrap("list purge candidates", err)
}

// keepSendersSQL is the first part of an update of the rows of poisoned messages that leave the stream. It moves their
// sequence numbers to purged_seq and keeps the rows, because the relay reads from them who gets the acknowledgement. Only
// the row of a poisoned message has a sender.
const (
	keepSendersSQL = `update accepted_messages a set accept_seq = null, purged_seq = coalesce(a.accept_seq, a.purged_seq)`

	markPurgedSQL = `
with t as materialized (
    select * from unnest($1::uuid[], $2::bigint[]) as t (id, seq)
), kept as (
    ` + keepSendersSQL + ` from t where a.id = t.id and a.accept_seq = t.seq and a.sender is not null
)
delete from accepted_messages a using t where a.id = t.id and a.accept_seq = t.seq and a.sender is null`
)

// MarkPurged records that the stream no longer has these messages: it deletes their rows of accepted_messages. The rows of
// poisoned messages stay until ForgetDelivered deletes them.
func (st *Store) MarkPurged(ctx context.Context, purged []AcceptedSeq) error {
	_, err := st.db.Hot.Exec(ctx, markPurgedSQL, store.Column(purged, func(p AcceptedSeq) task.ID { return p.ID }),
		store.Column(purged, func(p AcceptedSeq) int64 { return p.Seq }))
	return store.Wrap("mark messages purged", err)
}

const checkedSQL = `
select accept_seq, looked_seq, looked_taken, now() - looked_at from accepted_checked where stream_created = $1`

// forgetEarlierRows limits the rows of one forgetEarlierSQL: removing all rows at once could exceed the statement timeout.
const forgetEarlierRows = 10_000

const (
	// forgetEarlierSQL reads the next rows after an id, removes those of the earlier stream, and returns the last id.
	forgetEarlierSQL = `
with part as materialized (
    select id from accepted_messages where id > $2 order by id limit $3
), kept as (
    ` + keepSendersSQL + ` from part where a.id = part.id and a.sender is not null and a.saved_at < $1
), forgotten as (
    delete from accepted_messages a using part where a.id = part.id and a.sender is null and coalesce(a.saved_at, a.delivered_at) < $1
)
select id from part order by id desc limit 1`

	// beginStreamSQL sets the time of the last scan to 1970, so that a scan is due at once.
	beginStreamSQL = `
insert into accepted_checked (accept_seq, stream_created, looked_at) values (0, $1, 'epoch')
on conflict (one) do update set accept_seq = 0, looked_seq = 0, looked_taken = 0, looked_at = 'epoch', stream_created = excluded.stream_created
where accepted_checked.stream_created <> excluded.stream_created`
)

// beginStream removes the rows of the earlier stream, because the new stream uses the same sequence numbers again. Then it
// sets the progress of the new stream to 0. If it fails in the middle, the next call continues.
func (st *Store) beginStream(ctx context.Context, created time.Time) error {
	for after := (task.ID{}); ; {
		err := st.db.Hot.QueryRow(ctx, forgetEarlierSQL, created, after, forgetEarlierRows).Scan(&after)
		if errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err := st.db.Hot.Exec(ctx, beginStreamSQL, store.Unprepared, created)
	return err
}

// Checked is how far the stream was compared with the saved messages, by sequence numbers of the stream.
type Checked struct {
	Seq         uint64        // all messages up to Seq are saved, rejected or dead letters
	LastSeq     uint64        // of the last message in the stream at the last scan
	ConsumedSeq uint64        // all messages up to ConsumedSeq had been consumed at the last scan
	Ago         time.Duration // since the last scan
}

// Checked returns the progress of the stream that was created at this time. For a new stream, the progress is zero, and
// Checked first removes the rows of the earlier stream (beginStream).
func (st *Store) Checked(ctx context.Context, created time.Time) (c Checked, err error) {
	err = st.db.Hot.QueryRow(ctx, checkedSQL, store.Unprepared, created).Scan(&c.Seq, &c.LastSeq, &c.ConsumedSeq, &c.Ago)
	if errors.Is(err, pgx.ErrNoRows) {
		err = st.beginStream(ctx, created)
	}
	return c, store.Wrap("checked messages", err)
}

const markScannedSQL = `
update accepted_checked set looked_seq = $1, looked_taken = $2, looked_at = now() where stream_created = $3`

// MarkScanned records the result of a scan of the stream.
func (st *Store) MarkScanned(ctx context.Context, created time.Time, last, consumed uint64) error {
	_, err := st.db.Hot.Exec(ctx, markScannedSQL, store.Unprepared, int64(last), int64(consumed), created)
	return store.Wrap("mark stream scanned", err)
}

const setCheckedSQL = `
update accepted_checked set accept_seq = case when accept_seq between 0 and $3 then greatest(accept_seq, $1) else $1 end where stream_created = $2`

// SetChecked records that no message up to seq is missing. last is the last sequence number of the stream. A
// recorded number above seq stays, unless it is above last.
func (st *Store) SetChecked(ctx context.Context, created time.Time, seq, last uint64) error {
	_, err := st.db.Hot.Exec(ctx, setCheckedSQL, store.Unprepared, int64(seq), created, int64(last))
	return store.Wrap("set checked messages", err)
}

const missingSequencesSQL = `
select seq from generate_series($1::bigint, $2::bigint) as seq
where not exists (select from accepted_messages a where a.accept_seq = seq)`

// MissingSequences returns, in order, the sequence numbers from first to last that no row of accepted_messages has: their
// messages were neither saved nor rejected, or they were purged. The cost of the call grows with the range.
func (st *Store) MissingSequences(ctx context.Context, first, last uint64) ([]uint64, error) {
	seqs, err := store.QueryRows(ctx, st.db.Hot, pgx.RowTo[uint64], missingSequencesSQL, int64(first), int64(last))
	slices.Sort(seqs)
	return seqs, store.Wrap("find missing messages", err)
}

const knownAcceptedSQL = `
select a.accept_seq from unnest($1::uuid[], $2::bigint[]) as t (id, seq) join accepted_messages a on a.id = t.id and a.accept_seq = t.seq`

// KnownAccepted returns the sequence numbers of the entries that were saved or rejected and are not purged.
func (st *Store) KnownAccepted(ctx context.Context, entries []AcceptedSeq) (known map[int64]bool, err error) {
	known = map[int64]bool{}
	var seq int64
	err = store.QueryEach(ctx, st.db.Hot, knownAcceptedSQL, []any{
		store.Column(entries, func(e AcceptedSeq) task.ID { return e.ID }), store.Column(entries, func(e AcceptedSeq) int64 { return e.Seq }),
	}, []any{&seq}, func() { known[seq] = true })
	return known, store.Wrap("find known accepted messages", err)
}

const deadSQL = `
select event_id from dead_letters where dead and function = 'save' and event_id = any($1::text[])`

// DeadAccepted returns which of the accepted messages are dead letters.
func (st *Store) DeadAccepted(ctx context.Context, ids []string) ([]string, error) {
	dead, err := store.QueryRows(ctx, st.db.Hot, pgx.RowTo[string], deadSQL, ids)
	return dead, store.Wrap("dead accepted messages", err)
}

const countDeadSQL = `select count(*) from dead_letters where dead and function = 'save'`

// CountDeadAccepted counts the accepted messages that are dead letters.
func (st *Store) CountDeadAccepted(ctx context.Context) (n int, err error) {
	err = st.db.Read.QueryRow(ctx, countDeadSQL).Scan(&n)
	return n, store.Wrap("count dead accepted messages", err)
}
