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

// queueLockTimeout limits the lock waits of a flush that has keys. Without keys the timeout of
// the role applies.
func (f *submitFlush) queueLockTimeout(batch *pgx.Batch) {
	switch {
	case !slices.ContainsFunc(f.rows, func(s *Submission) bool { return s.Key != nil }):
	case f.alone:
		batch.Queue(store.SetLockTimeoutSQL, store.KeyTimeoutAlone)
	default:
		batch.Queue(store.SetLockTimeoutSQL, store.KeyTimeout)
	}
}

const lockDefaultsSQL = `
select id, phone_number, content, use_template, is_sent
from default_sms_data
where phone_number = any($1::varchar[])
order by phone_number
for update`

// wantedTemplatesSQL finds the templates that the drafts of a flush name, and the default one:
// the active template with the lowest id.
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

// submitFacts is what a flush reads before it composes.
type submitFacts struct {
	defaults  map[string]*task.DefaultContent // by normalized phone number
	templates []task.StoredTemplate           // by id
	keys      map[task.Hash]bool
	ids       map[task.ID]bool // committed by an earlier try of this flush
}

// lookUp begins the transaction and reads the facts, in one round trip.
func (f *submitFlush) lookUp(ctx context.Context, conn *pgx.Conn, again bool) (*submitFacts, error) {
	var phones, names []string
	var templateIDs []int32
	var keys []task.Hash
	var ids []task.ID
	for _, s := range f.rows {
		if s.Draft.NeedsDefault() {
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
		if again {
			ids = append(ids, s.ID)
		}
	}
	found := &submitFacts{defaults: map[string]*task.DefaultContent{}, keys: map[task.Hash]bool{}, ids: map[task.ID]bool{}}
	var batch pgx.Batch
	batch.Queue("begin")
	f.queueLockTimeout(&batch)
	batch.Queue(lockDefaultsSQL, phones).Query(func(rows pgx.Rows) error {
		var phone string
		var d task.DefaultContent
		_, err := pgx.ForEachRow(rows, []any{&d.ID, &phone, &d.Content, &d.UseTemplate, &d.Sent}, func() error {
			number, _ := f.store.phones.Phone(phone)
			if older := found.defaults[number]; older == nil || d.ID < older.ID {
				row := d
				found.defaults[number] = &row
			}
			return nil
		})
		return err
	})
	batch.Queue(wantedTemplatesSQL, templateIDs, names).Query(func(rows pgx.Rows) (err error) {
		found.templates, err = pgx.CollectRows(rows, pgx.RowToStructByPos[task.StoredTemplate])
		return err
	})
	batch.Queue(knownKeysSQL, keys).Query(store.CollectSet(found.keys))
	batch.Queue(knownTasksSQL, ids).Query(store.CollectSet(found.ids))
	return found, conn.SendBatch(ctx, &batch).Close()
}

// template returns the template that a draft names, or nil.
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

// insertRows creates tasks: body, live row and log row. If an id exists, an earlier try of it
// is still being committed: the statement waits for it, fails, and is run again.
const (
	insertColumns = `
with i as materialized (
    select * from unnest($1::uuid[], $2::bigint[], $3::text[], $4::smallint[], $5::smallint[], $6::smallint[], $7::text[], $8::text[],
        $9::text[], $10::text[], $11::jsonb[], $12::timestamptz[], $13::timestamptz[], $14::interval[], $15::text[], $16::boolean[],
        $17::text[], $18::text[], $19::jsonb[]`
	insertNames = `id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content,
        source, callback_url, metadata, send_at, expires_at, ttl, request_id, use_template,
        source_ip, user_agent, request_data`
	insertTimes = `
w as materialized (
    select i.*, case when send_at > now() then send_at end as run_at, coalesce(expires_at, greatest(send_at, now()) + ttl) as ends_at
    from i`
	insertRows = `
), b as (
    insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, source,
        send_at, expires_at, callback_url, metadata)
    select id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, source, send_at, ends_at, callback_url, metadata
    from w
), l as (
    insert into task_live (id, state, priority, max_retries, on_unknown, queue, due_at, expires_at, caller_id, callback)
    select id, case when run_at is null then 1 else 0 end, priority, max_retries, on_unknown, queue,
        coalesce(run_at, ends_at), ends_at, caller_id, callback_url is not null
    from w
    returning id, state
), r as (
    insert into receive_logs (request_id, task_id, caller_id, phone_number, content, use_template, source_ip, user_agent,
        request_data, response_data, status_code)
    select request_id, id, caller_id, phone_number, content, use_template, source_ip, user_agent, request_data,
        jsonb_build_object('task_id', id, 'status', 0), 200
    from w
)`
)

// insertPlain is for rows with neither a key nor default content.
const insertPlain = insertColumns + `)
    as t (` + insertNames + `)
),` + insertTimes + insertRows

// insertKeyed also writes the keys and marks default content as sent. A row whose key exists
// is left out, in the answer too. Rows are sorted by key, so that two flushes never deadlock.
const insertKeyed = insertColumns + `, $20::uuid[], $21::uuid[], $22::integer[])
    as t (` + insertNames + `, key, fingerprint, default_id)
), k as (
    insert into submission_keys (key, fingerprint, id)
    select key, fingerprint, id from i where key is not null
    on conflict (key) do nothing
    returning id
),` + insertTimes + ` where key is null or id in (select id from k)` + insertRows + `, d as (
    update default_sms_data set is_sent = true, updated_at = now()
    where id in (select default_id from w)
)`

// insertEvents writes the events of insertRows.
const insertEvents = `, e as (
    insert into event_outbox (kind, caller_id, ids)
    select kind, caller_id, array_agg(id)
    from (select w.*, case when run_at is null then 'task.pending' else 'task.scheduled' end as kind from w) changed
    where callback_url is not null or ` + store.HasEndpoint + `
    group by kind, caller_id
)`

const insertAnswer = `
select id, state from l`

const (
	insertPlainSQL           = insertPlain + insertAnswer
	insertPlainWithEventsSQL = insertPlain + insertEvents + insertAnswer
	insertKeyedSQL           = insertKeyed + insertAnswer
	insertKeyedWithEventsSQL = insertKeyed + insertEvents + insertAnswer
)

// insert runs the rows that are ready, logs the refused ones, and marks those whose key or id
// exists for resolve. With inTx it ends the transaction that lookUp began; otherwise it is a
// transaction of its own.
func (f *submitFlush) insert(ctx context.Context, conn *pgx.Conn, inTx bool) error {
	var order []int
	logs := newReceiveLogs(f.store.statusOf)
	for i, s := range f.rows {
		switch f.act[i] {
		case insert:
			order = append(order, i)
		case refuse:
			logs.add(s, f.out[i])
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return compareKeys(f.rows[a], f.rows[b]) })

	var batch pgx.Batch
	states := make(map[task.ID]task.State, len(order))
	if !inTx {
		f.queueLockTimeout(&batch)
	}
	if len(order) > 0 {
		batch.Queue(store.PlanOnceSQL)
		sql, columns := f.statement(order)
		batch.Queue(sql, columns...).Query(func(rows pgx.Rows) error {
			var id task.ID
			var state task.State
			_, err := pgx.ForEachRow(rows, []any{&id, &state}, func() error {
				states[id] = state
				return nil
			})
			return err
		})
	}
	logs.queue(&batch)
	if inTx {
		batch.Queue("commit")
	}
	for _, i := range order {
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
	for _, i := range order {
		state, inserted := states[f.rows[i].ID]
		if !inserted {
			f.act[i] = resolve
		}
		f.out[i].State = state
	}
	return nil
}

func compareKeys(a, b *Submission) int {
	switch {
	case a.Key != nil && b.Key != nil:
		return slices.Compare(a.Key[:], b.Key[:])
	case a.Key != nil:
		return -1
	case b.Key != nil:
		return 1
	default:
		return 0
	}
}

// statement returns the insert statement and its arrays. A flush with neither keys nor default
// content, as the first one of a process often is, does not plan them.
func (f *submitFlush) statement(order []int) (sql string, columns []any) {
	n := len(order)
	var (
		ids                                         = make([]task.ID, n)
		callers                                     = make([]int64, n)
		queues, phones, contents                    = make([]string, n), make([]string, n), make([]string, n)
		sources, callbacks, metadata                = make([]*string, n), make([]*string, n), make([]*string, n)
		priorities, retries, policies               = make([]int16, n), make([]int16, n), make([]int16, n)
		sendAt, expiresAt                           = make([]*time.Time, n), make([]*time.Time, n)
		ttls                                        = make([]*time.Duration, n)
		requestIDs, sourceIPs, userAgents, requests = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		useTemplate                                 = make([]bool, n)
		keys, prints                                = make([]*task.Hash, n), make([]*task.Hash, n)
		defaults                                    = make([]*int32, n)
		plain                                       = true
	)
	for n, i := range order {
		s := f.rows[i]
		ids[n], callers[n], queues[n], phones[n] = s.ID, s.CallerID, s.Queue, s.Phone
		priorities[n], retries[n], policies[n] = s.Priority, s.MaxRetries, int16(s.OnUnknown)
		contents[n], sources[n], callbacks[n] = f.final[i].Text, store.OrNull(s.Source), store.OrNull(s.CallbackURL)
		metadata[n] = store.OrNull(string(s.Metadata))
		sendAt[n], expiresAt[n] = store.TimeOrNull(s.SendAt), store.TimeOrNull(s.ExpiresAt)
		ttls[n] = store.OrNull(s.TTL)
		requestIDs[n], sourceIPs[n], userAgents[n] = s.RequestID, s.SourceIP, s.loggedAgent()
		useTemplate[n], requests[n] = f.final[i].UseTemplate, store.LogJSON(s.Request)
		if s.Key != nil {
			keys[n], prints[n], plain = s.Key, &s.Fingerprint, false
		}
		if used := f.taken[i]; used != nil {
			defaults[n], plain = &used.ID, false
		}
	}
	columns = []any{ids, callers, queues, priorities, retries, policies, phones, contents, sources, callbacks, metadata,
		sendAt, expiresAt, ttls, requestIDs, useTemplate, sourceIPs, userAgents, requests}
	if plain {
		return f.store.db.EventMode.Pick(insertPlainSQL, insertPlainWithEventsSQL), columns
	}
	return f.store.db.EventMode.Pick(insertKeyedSQL, insertKeyedWithEventsSQL), append(columns, keys, prints, defaults)
}
