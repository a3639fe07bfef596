package tasks

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Submit stores the submissions, together with those of other calls, and returns when all have been
// processed. The two slices have one entry for each row, in order. A refusal is not an error, but in Submitted.Refused.
// The error task.CodeKeyInFlight means that another call with the same key is in progress. After any other error, it
// is unknown whether the row was stored.
func (st *Store) Submit(rows []*Submission) ([]Submitted, []error) {
	outs, errs := st.submits.Do(rows)
	for i, err := range errs {
		if err == nil {
			err = outs[i].err
		}
		if store.TimedOutOnRowOf(err, "submission_keys") {
			err = store.KeyInFlight()
		}
		errs[i] = store.Wrap("submit", err)
	}
	return outs, errs
}

// flushSubmissions commits the rows in one transaction. If the response to the commit is lost, the
// transaction is run again, and finds the ids that were committed. After the commit, flushSubmissions resolves the
// rows whose key or id existed before; an error in that step fails only these rows.
func (st *Store) flushSubmissions(ctx context.Context, rows []*Submission, alone bool) ([]Submitted, error) {
	blocked, err := st.blockedWords(ctx)
	if err != nil {
		return nil, err
	}
	f := &submitFlush{store: st, rows: rows, alone: alone, blocked: blocked, out: make([]Submitted, len(rows)), actions: make([]action, len(rows))}
	tried := slices.ContainsFunc(rows, func(s *Submission) bool { return s.tried })
	if err := st.db.RetryLostCommit(ctx, func(lost bool) error { return f.commit(ctx, tried || lost) }); err != nil {
		return nil, err
	}
	if err := st.db.WithPartitions(ctx, func() error { return f.resolve(ctx) }); err != nil {
		for i := range rows {
			if f.actions[i] == resolve {
				f.out[i].err = err
			}
		}
	}
	return f.out, nil
}

// commit inserts or refuses the rows, except rows that get the action resolve. If mayBeStored is true, an earlier try
// may have stored rows, so commit first queries which of their ids exist.
func (f *submitFlush) commit(ctx context.Context, mayBeStored bool) error {
	f.composed = make([]task.Composed, len(f.rows))
	f.defaults = make([]*task.DefaultContent, len(f.rows))
	query := mayBeStored
	for i, s := range f.rows {
		f.actions[i], f.out[i] = insert, Submitted{ID: s.ID}
		query = f.composeEarly(i, s) || query
	}
	conn, err := f.store.db.Hot.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if query {
		err = f.composeAndInsert(ctx, conn.Conn(), mayBeStored)
	} else {
		err = f.insert(ctx, conn.Conn(), false)
	}
	return store.WrapConnectionLost(conn.Conn(), err)
}

// composeAndInsert is commit for a flush in which a row needs a template, default content, or a query of its key or
// id. It locks the rows of default content before it reads keys. So if another call with the same key used the default
// content first, that call has been committed, and its key is found.
func (f *submitFlush) composeAndInsert(ctx context.Context, conn *pgx.Conn, mayBeStored bool) error {
	found, err := f.lookUp(ctx, conn, mayBeStored)
	if err != nil {
		return store.RollbackOn(conn, err)
	}
	keys := map[task.Hash]bool{} // of the rows to insert
	for i, s := range f.rows {
		if found.ids[s.ID] || s.Key != nil && (found.keys[*s.Key] || keys[*s.Key]) {
			f.actions[i] = resolve
			continue
		}
		f.decide(i, s, found)
		if f.actions[i] == insert && s.Key != nil {
			keys[*s.Key] = true
		}
	}
	return store.RollbackOn(conn, f.insert(ctx, conn, true))
}

// decide composes or refuses a row that has no key or whose key is not used.
func (f *submitFlush) decide(i int, s *Submission, found *submitFacts) {
	if s.Refused == nil {
		s.Refused = s.takeQuota()
	}
	if s.Refused != nil {
		f.refuse(i, s.Refused)
		return
	}
	draft := s.Draft
	var content *task.DefaultContent
	if draft.NeedsDefault() {
		var err error
		content = found.defaults[s.Phone]
		if draft, err = draft.WithDefault(content); err != nil {
			f.refuse(i, err)
			return
		}
		if !found.locked[content.ID] { // it was added or reset since the lock
			f.refuse(i, store.Busy())
			return
		}
	}
	if f.compose(i, draft, found.template(draft)) && content != nil {
		f.defaults[i], content.Sent = content, true
	}
}

// resolve sets the results of the rows with the action resolve: an earlier call, an earlier row, or an earlier try of
// this flush inserted their key or id. It also logs replays and refusals.
func (f *submitFlush) resolve(ctx context.Context) error {
	var ids []task.ID
	var keys []task.Hash
	for i, s := range f.rows {
		switch {
		case f.actions[i] != resolve:
		case s.Key != nil:
			keys = append(keys, *s.Key)
		default:
			ids = append(ids, s.ID)
		}
	}
	if len(ids)+len(keys) == 0 {
		return nil
	}
	known, err := f.store.firstCalls(ctx, ids, keys)
	if err != nil {
		return err
	}
	var logs []receivedLog
	for i, s := range f.rows {
		if f.actions[i] != resolve {
			continue
		}
		first, found := known.of(s)
		if f.out[i].err = first.check(found); f.out[i].err != nil {
			continue
		}
		if refusal := first.refusal(s.Fingerprint); s.Key != nil && refusal != nil {
			f.out[i] = Submitted{ID: s.ID, Refused: refusal}
		} else {
			f.out[i] = Submitted{ID: first.id, State: *first.state, Text: first.content, Replayed: first.id != s.ID, Archived: first.archived}
		}
		if first.id != s.ID {
			logs = append(logs, f.store.receivedLog(s, f.out[i]))
		}
	}
	var batch pgx.Batch
	if logReceived.Queue(&batch, logs) == nil { // no rows to log
		return nil
	}
	return f.store.db.Hot.SendBatch(ctx, &batch).Close()
}
