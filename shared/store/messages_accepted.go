package store

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// Saving is what became of an accepted message when it was to be saved.
type Saving int8

// The outcomes of saving.
const (
	SavedNow     Saving = iota
	SavedBefore         // a repeat of one that was saved: nothing changed
	SaveRejected        // its client_msg_id stands for another message: it is a dead letter
	SavePoisoned        // the database will never take it: it is a dead letter
)

// SaveAccepted saves messages that a stream has accepted, in the order of that,
// and the acknowledgements to their senders with them, in one transaction. When
// one of them is at fault the others are saved all the same. An error means that
// none is known to be saved and the same call must be made again; it changes
// nothing that an earlier one did, but may acknowledge once more.
func (db *DB) SaveAccepted(ctx context.Context, rows []*NewMessage) ([]Saving, error) {
	out, err := db.saveAccepted(ctx, rows)
	if len(rows) == 1 && isPoison(err) {
		return []Saving{SavePoisoned}, db.Bury(ctx, acceptedLetter(rows[0], err.Error()))
	}
	if len(rows) < 2 || !oneRowsFault(err) {
		return out, failed("save accepted messages", err)
	}
	out = make([]Saving, 0, len(rows))
	for i := range rows {
		one, err := db.SaveAccepted(ctx, rows[i:i+1])
		if err != nil {
			return nil, err
		}
		out = append(out, one...)
	}
	return out, nil
}

// isPoison tells a row that the database will never take from one that met a
// passing state.
func isPoison(err error) bool {
	code := pgCode(err)
	return len(code) == 5 && (code[:2] == "22" || code[:2] == "23")
}

func acceptedLetter(m *NewMessage, reason string) DeadLetter {
	return DeadLetter{
		Function: "save", EventID: m.ID.String(), EventType: m.Type, Event: string(m.Data), Reason: reason, Attempts: 1,
	}
}

const (
	rememberAcceptedSQL = `
insert into accepted_messages (accept_seq, id) select max(seq), id from unnest($1::bigint[], $2::uuid[]) as t (seq, id) group by id
on conflict (id) do update set accept_seq = excluded.accept_seq, saved_at = now()`
	insertAcksSQL = `insert into event_outbox (kind, ids) values ($1, $2)`
)

func (db *DB) saveAccepted(ctx context.Context, rows []*NewMessage) (out []Saving, err error) {
	for i, m := range rows {
		m.ahead = time.Duration(len(rows)-1-i) * time.Microsecond
	}
	told := &news{db: db}
	err = pgx.BeginFunc(ctx, db.hot, func(tx pgx.Tx) error {
		inserted, known := map[task.ID]bool{}, map[task.ID]task.Hash{}
		fresh := freshMessages(rows)
		var batch pgx.Batch
		batch.Queue(insertMessagesSQL, messageColumns(fresh)...).Query(collectSet(inserted))
		batch.Queue(fingerprintsSQL, column(fresh, func(m *NewMessage) task.ID { return m.ID })).Query(func(rows pgx.Rows) error {
			var id task.ID
			var print task.Hash
			_, err := pgx.ForEachRow(rows, []any{&id, &print}, func() error {
				known[id] = print
				return nil
			})
			return err
		})
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return err
		}
		out = judgeAccepted(rows, inserted, known)
		batch = pgx.Batch{}
		queueAcks(&batch, told, rows, out)
		return tx.SendBatch(ctx, &batch).Close()
	})
	return out, told.after(err)
}

const fingerprintsSQL = `select id, fingerprint from messages where id = any($1::uuid[])`

func judgeAccepted(rows []*NewMessage, inserted map[task.ID]bool, known map[task.ID]task.Hash) []Saving {
	out := make([]Saving, len(rows))
	for i, m := range rows {
		switch {
		case known[m.ID] != m.Fingerprint:
			out[i] = SaveRejected
		case inserted[m.ID]:
			inserted[m.ID] = false
		default:
			out[i] = SavedBefore
		}
	}
	return out
}

// queueAcks adds what the senders are told and what is to be forgotten of the
// stream.
func queueAcks(batch *pgx.Batch, told *news, rows []*NewMessage, out []Saving) {
	var saved, rejected []task.ID
	for i, m := range rows {
		if out[i] == SaveRejected {
			rejected = append(rejected, m.ID)
			queueDeadLetter(batch, acceptedLetter(m, "its client_msg_id was used for another message, which was saved first"))
			continue
		}
		saved = append(saved, m.ID)
	}
	batch.Queue(rememberAcceptedSQL, column(rows, func(m *NewMessage) int64 { return m.AcceptSeq }), column(rows, func(m *NewMessage) task.ID { return m.ID }))
	if len(saved) > 0 {
		told.expect(batch.Queue(insertAcksSQL, kindSaved, saved))
	}
	if len(rejected) > 0 {
		told.expect(batch.Queue(insertAcksSQL, kindRejected, rejected))
	}
}

const forgettableSQL = `
select id, accept_seq from accepted_messages where saved_at <= now() - make_interval(secs => $1) order by saved_at limit $2`

// AcceptedPlace is where the stream holds a message.
type AcceptedPlace struct {
	ID  task.ID
	Seq int64
}

// Forgettable gives the places in the stream of up to limit messages that were
// saved at least window ago.
func (db *DB) Forgettable(ctx context.Context, window time.Duration, limit int) ([]AcceptedPlace, error) {
	rows, err := db.hot.Query(ctx, forgettableSQL, window.Seconds(), limit)
	if err != nil {
		return nil, failed("forgettable messages", err)
	}
	places, err := pgx.CollectRows(rows, pgx.RowToStructByPos[AcceptedPlace])
	return places, failed("forgettable messages", err)
}

const forgottenSQL = `
delete from accepted_messages a using unnest($1::uuid[], $2::bigint[]) as t (id, seq) where a.id = t.id and a.accept_seq = t.seq`

// Forgotten says that the stream holds these no more.
func (db *DB) Forgotten(ctx context.Context, places []AcceptedPlace) error {
	_, err := db.hot.Exec(ctx, forgottenSQL, column(places, func(p AcceptedPlace) task.ID { return p.ID }),
		column(places, func(p AcceptedPlace) int64 { return p.Seq }))
	return failed("forgotten messages", err)
}

const checkedSQL = `select coalesce(max(accept_seq), 0) from accepted_checked`

// Checked is how far the stream was compared with what is saved.
func (db *DB) Checked(ctx context.Context) (seq uint64, err error) {
	var n int64
	err = db.hot.QueryRow(ctx, checkedSQL).Scan(&n)
	return uint64(n), failed("checked messages", err)
}

const setCheckedSQL = `
insert into accepted_checked (accept_seq) values ($1)
on conflict (one) do update set accept_seq = greatest(accepted_checked.accept_seq, excluded.accept_seq)`

// SetChecked says that nothing at or before seq is missing; it never goes back.
func (db *DB) SetChecked(ctx context.Context, seq uint64) error {
	_, err := db.hot.Exec(ctx, setCheckedSQL, int64(seq))
	return failed("checked messages", err)
}

const settledSQL = `
select id::text from messages where id = any($1::uuid[])
union select event_id from dead_letters where dead and function = 'save' and event_id = any($1::uuid[]::text[])`

// Unsaved gives those of the ids that are neither saved nor dead letters.
func (db *DB) Unsaved(ctx context.Context, ids []task.ID) ([]task.ID, error) {
	rows, err := db.hot.Query(ctx, settledSQL, ids)
	if err != nil {
		return nil, failed("unsaved messages", err)
	}
	settled, err := pgx.CollectRows(rows, pgx.RowTo[string])
	missing := slices.DeleteFunc(slices.Clone(ids), func(id task.ID) bool { return slices.Contains(settled, id.String()) })
	return missing, failed("unsaved messages", err)
}
