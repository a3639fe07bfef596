package tasks

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// lockDefaultsSQL locks the default contents that were not sent. allDefaultsSQL runs after it, and also finds those
// that were sent before, or while lockDefaultsSQL waited. allDefaultsSQL locks no rows: a submission whose default
// content was sent is refused, and must not make other callers wait.
const (
	lockDefaultsSQL = selectDefaults + ` and not is_sent order by phone_number for update`
	allDefaultsSQL  = selectDefaults

	selectDefaults = `
select id, phone_number, content, use_template, is_sent
from default_sms_data
where phone_number = any($1::varchar[])`
)

// wantedTemplatesSQL finds the active templates that the drafts of a flush name by id ($1) or name ($2), and the
// default template: the active template with the lowest id.
const wantedTemplatesSQL = `
select id, template_name, template_content
from sms_templates
where is_active and (id = any($1::integer[]) or template_name = any($2::varchar[])
    or id = (select min(id) from sms_templates where is_active))
order by id`

const knownKeysSQL = `select key from submission_keys where key = any($1::uuid[])`

const knownTasksSQL = `
select id from tasks where id = any($1::uuid[])
union all
select id from archived_tasks where id = any($1::uuid[])`

// submitFacts is what a flush reads before it composes the texts.
type submitFacts struct {
	defaults  map[string]*task.DefaultContent // by normalized phone number
	locked    map[int32]bool                  // ids of the locked default contents
	templates []task.StoredTemplate           // in order of id
	keys      map[task.Hash]bool              // keys of this flush that are already used
	ids       map[task.ID]bool                // ids of this flush that an earlier try has committed
}

// lookUp begins the transaction, locks default contents and reads the facts, in one round trip.
func (f *submitFlush) lookUp(ctx context.Context, conn *pgx.Conn, mayBeStored bool) (*submitFacts, error) {
	var phones, names []string
	var templateIDs []int32
	var keys []task.Hash
	var ids []task.ID
	for _, s := range f.rows {
		if s.Refused == nil && s.Draft.NeedsDefault() {
			phones = append(phones, f.store.phones.Spellings(s.Phone)...)
		}
		if s.Draft.TemplateID != 0 {
			templateIDs = append(templateIDs, s.Draft.TemplateID)
		}
		if s.Draft.TemplateName != "" {
			names = append(names, s.Draft.TemplateName)
		}
		if s.Key != nil {
			keys = append(keys, *s.Key)
		}
		if mayBeStored {
			ids = append(ids, s.ID)
		}
	}
	found := &submitFacts{defaults: map[string]*task.DefaultContent{}, locked: map[int32]bool{}, keys: map[task.Hash]bool{}, ids: map[task.ID]bool{}}
	var batch pgx.Batch
	batch.Queue("begin")
	if timeout := f.lockTimeout(); timeout != "" {
		batch.Queue(store.SetLockTimeoutSQL, timeout)
	}
	for _, sql := range []string{lockDefaultsSQL, allDefaultsSQL} {
		batch.Queue(sql, phones).Query(func(rows pgx.Rows) error {
			var phone string
			var d task.DefaultContent
			return store.Each(rows, []any{&d.ID, &phone, &d.Content, &d.UseTemplate, &d.Sent}, func() {
				if sql == lockDefaultsSQL {
					found.locked[d.ID] = true
				}
				number, _ := f.store.phones.Phone(phone)
				if other := found.defaults[number]; other == nil || d.ID < other.ID {
					found.defaults[number] = new(d)
				}
			})
		})
	}
	batch.Queue(wantedTemplatesSQL, templateIDs, names).Query(func(rows pgx.Rows) (err error) {
		found.templates, err = pgx.CollectRows(rows, pgx.RowToStructByPos[task.StoredTemplate])
		return err
	})
	batch.Queue(knownKeysSQL, keys).Query(store.CollectSet(found.keys))
	batch.Queue(knownTasksSQL, ids).Query(store.CollectSet(found.ids))
	return found, conn.SendBatch(ctx, &batch).Close()
}

// template returns the template that a draft names by id or name, or the default template if the draft names none. It
// returns nil if the draft uses no template, or if there is no such active template.
func (f *submitFacts) template(d task.Draft) *task.StoredTemplate {
	if !d.UseTemplate {
		return nil
	}
	i := slices.IndexFunc(f.templates, func(t task.StoredTemplate) bool {
		switch {
		case d.TemplateID != 0:
			return t.ID == d.TemplateID
		case d.TemplateName != "":
			return t.Name == d.TemplateName
		default:
			return true
		}
	})
	if i < 0 {
		return nil
	}
	return &f.templates[i]
}

// readyRow is a submission whose text is final.
type readyRow struct {
	*Submission
	task.Composed
	used *task.DefaultContent // the default content that the text uses; nil = none
}

// plainColumns are the columns of rows that have neither a key nor default content.
func plainColumns() []store.BulkColumn[readyRow] {
	type r = readyRow
	return []store.BulkColumn[r]{
		store.Array("id uuid", func(s r) task.ID { return s.ID }),
		store.Array("caller_id bigint", func(s r) int64 { return s.CallerID }),
		store.Array("queue text", func(s r) string { return s.Queue }),
		store.Array("priority smallint", func(s r) int16 { return s.Priority }),
		store.Array("max_retries smallint", func(s r) int16 { return s.MaxRetries }),
		store.Array("on_unknown smallint", func(s r) int16 { return int16(s.OnUnknown) }),
		store.Array("phone_number text", func(s r) string { return s.Phone }),
		store.Array("content text", func(s r) string { return s.Text }),
		store.Array("source text", func(s r) *string { return store.OrNull(s.Source) }),
		store.Array("callback_url text", func(s r) *string { return store.OrNull(s.CallbackURL) }),
		store.Array("metadata json", func(s r) *string { return store.OrNull(string(s.Metadata)) }),
		store.Array("send_at timestamptz", func(s r) *time.Time { return store.TimeOrNull(s.SendAt) }),
		store.Array("expiry timestamptz", func(s r) *time.Time { return store.TimeOrNull(s.ExpiresAt) }),
		store.Array("ttl interval", func(s r) *time.Duration { return store.OrNull(s.TTL) }),
		store.Array("request_id text", func(s r) string { return s.RequestID }),
		store.Array("use_template boolean", func(s r) bool { return s.UseTemplate }),
		store.Array("source_ip text", func(s r) string { return s.SourceIP }),
		store.Array("user_agent text", func(s r) string { return s.loggedAgent() }),
		store.Array("request_data json", func(s r) string { return store.LogJSON(s.Request) }),
	}
}

func keyedColumns() []store.BulkColumn[readyRow] {
	return append(plainColumns(),
		store.Array("key uuid", func(s readyRow) *task.Hash { return s.Key }),
		store.Array("fingerprint uuid", func(s readyRow) task.Hash { return s.Fingerprint }),
		store.Array("default_id integer", func(s readyRow) (id *int32) {
			if s.used != nil {
				id = &s.used.ID
			}
			return id
		}))
}

// An insert is insertInput, insertTimes and insertRows. It creates bodies, live rows and log rows. If an id already
// exists, an earlier try of the same submission was committed after lookUp or is still being committed. The insert
// waits for that commit and fails, and the flush is run again.
const (
	insertInput = `
with input as materialized (
    select * from unnest(@arrays) as t (@columns)
)`
	insertTimes = `, ready as materialized (
    select input.*, case when send_at > now() then send_at end as run_at, coalesce(expiry, greatest(send_at, now()) + ttl) as expires_at
    from input`
	insertRows = `
), bodies as (
    insert into tasks (` + submittedNames + `) select ` + submittedNames + ` from ready
), live as (
    insert into task_live (` + liveBodyNames + `, state, due_at, callback)
    select ` + liveBodyNames + `, case when run_at is null then 1 else 0 end, coalesce(run_at, expires_at), callback_url is not null
    from ready
    returning id, state
), received as (
    insert into receive_logs (` + receivedNames + `, task_id, response_data, status_code)
    select ` + receivedNames + `, id, jsonb_build_object('task_id', id, 'status', 0), 200
    from ready
)`
)

const insertPlain = insertInput + insertTimes + insertRows

// insertKeyed also writes the keys and marks default content as sent. If the key of a row exists, the row is
// neither inserted nor returned. The rows are sorted by key, so that two flushes with the same keys do not deadlock.
const insertKeyed = insertInput + `, new_keys as (
    insert into submission_keys (key, fingerprint, id)
    select key, fingerprint, id from input where key is not null
    on conflict (key) do nothing
    returning id
)` + insertTimes + ` where key is null or id in (select id from new_keys)` + insertRows + `, used_defaults as (
    update default_sms_data set is_sent = true, updated_at = now()
    where id in (select default_id from ready)
)`

// insertTaskEvents writes the events of insertRows.
const insertTaskEvents = `, events as (
    insert into event_outbox (kind, caller_id, ids)
    select kind, caller_id, array_agg(id)
    from (select ready.*, case when run_at is null then 'task.pending' else 'task.scheduled' end as kind from ready) changed
    where callback_url is not null or ` + store.HasEndpoint + `
    group by kind, caller_id
)`

const selectInserted = `
select id, state from live`

// The inserts: [0] without events, [1] with events. A flush uses plainInserts, which take less time to plan, if none of
// its rows has a key or default content.
var (
	plainInserts = [2]store.BulkStatement[readyRow]{
		{Columns: plainColumns, Text: insertPlain + selectInserted},
		{Columns: plainColumns, Text: insertPlain + insertTaskEvents + selectInserted},
	}
	keyedInserts = [2]store.BulkStatement[readyRow]{
		{Columns: keyedColumns, Text: insertKeyed + selectInserted},
		{Columns: keyedColumns, Text: insertKeyed + insertTaskEvents + selectInserted},
	}
)

// insert inserts the rows that are ready, and logs the refused rows. If the key of a ready row exists, the row gets
// the action resolve. If inTx is true, insert commits the transaction that lookUp began. Otherwise insert
// runs in a transaction of its own.
func (f *submitFlush) insert(ctx context.Context, conn *pgx.Conn, inTx bool) error {
	var indexes []int // of the rows to insert
	var logs []receivedLog
	for i, s := range f.rows {
		switch f.actions[i] {
		case insert:
			indexes = append(indexes, i)
		case refuse:
			logs = append(logs, f.store.receivedLog(s, f.out[i]))
		}
	}
	slices.SortStableFunc(indexes, func(a, b int) int { return compareKeys(f.rows[a], f.rows[b]) })

	var batch pgx.Batch
	states := make(map[task.ID]task.State, len(indexes))
	if len(indexes) > 0 {
		if timeout := f.lockTimeout(); timeout != "" && !inTx {
			batch.Queue(store.LockTimeoutAndPlanOnceSQL, timeout)
		} else {
			batch.Queue(store.PlanOnceSQL)
		}
		f.queueInsert(&batch, indexes).Query(func(rows pgx.Rows) error {
			var id task.ID
			var state task.State
			return store.Each(rows, []any{&id, &state}, func() { states[id] = state })
		})
	}
	logReceived.Queue(&batch, logs)
	if inTx {
		batch.Queue("commit")
	}
	for _, i := range indexes {
		f.rows[i].tried = true
	}
	if batch.Len() == 0 {
		return nil
	}
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	if f.store.db.EventMode == store.AllEvents && len(states) > 0 {
		f.store.db.OnEvents()
	}
	for _, i := range indexes {
		state, inserted := states[f.rows[i].ID]
		if !inserted {
			f.actions[i] = resolve
		}
		f.out[i].State = state
	}
	return nil
}

func compareKeys(a, b *Submission) int {
	x, y := store.OrZero(a.Key), store.OrZero(b.Key)
	return slices.Compare(x[:], y[:])
}

func (f *submitFlush) queueInsert(batch *pgx.Batch, indexes []int) *pgx.QueuedQuery {
	ready, inserts := make([]readyRow, len(indexes)), &plainInserts
	for n, i := range indexes {
		ready[n] = readyRow{f.rows[i], f.composed[i], f.defaults[i]}
		if f.rows[i].Key != nil || f.defaults[i] != nil {
			inserts = &keyedInserts
		}
	}
	if f.store.db.EventMode == store.AllEvents {
		return inserts[1].Queue(batch, ready)
	}
	return inserts[0].Queue(batch, ready)
}
