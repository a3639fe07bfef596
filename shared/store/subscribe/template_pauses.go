package subscribe

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// CallerTemplate is a template of subscribe messages, for the messages of one caller.
type CallerTemplate struct {
	TemplateID string
	CallerID   int64
}

// Template counts the consecutive errors of one caller's messages with a template.
type Template struct {
	CallerTemplate
	CallerName string     // "" = the caller has no row in callers
	Strikes    int        // consecutive errors
	PausedAt   *time.Time // nil = the template is not paused
	Reason     string     // the newest error
	UpdatedAt  time.Time
}

const templateStrikes = 3 // consecutive errors that pause a template

const strikeTemplateSQL = `
insert into template_pauses as t (template_id, caller_id, strikes, reason) values ($1, $2, 1, $3)
on conflict (template_id, caller_id) do update set strikes = least(t.strikes, 32766) + 1, reason = excluded.reason, updated_at = now(),
    paused_at = case when t.strikes + 1 >= $4 then coalesce(t.paused_at, now()) end
returning paused_at is not null`

// StrikeTemplate counts an error that a template, or the values that the caller fills into it, has caused. The third
// consecutive error pauses the template for this caller. paused is true if the template is paused now.
func (st *Store) StrikeTemplate(ctx context.Context, t CallerTemplate, reason string) (paused bool, err error) {
	reason = task.Cut(store.Storable(reason), task.MaxResult)
	err = st.db.Hot.QueryRow(ctx, strikeTemplateSQL, t.TemplateID, t.CallerID, reason, templateStrikes).Scan(&paused)
	return paused, store.Wrap("strike template", err)
}

const clearTemplateSQL = `delete from template_pauses where template_id = $1 and caller_id = $2 and paused_at is null`

// ClearTemplate resets the errors of a template after a success. If the template is paused, nothing changes: only an
// operator ends a pause.
func (st *Store) ClearTemplate(ctx context.Context, t CallerTemplate) error {
	_, err := st.db.Hot.Exec(ctx, clearTemplateSQL, t.TemplateID, t.CallerID)
	return store.Wrap("clear template", err)
}

const pausedTemplatesSQL = `
select t.template_id, t.caller_id from unnest($1::varchar[], $2::bigint[]) t (template_id, caller_id)
where exists (select from template_pauses p where p.template_id = t.template_id and p.caller_id = t.caller_id and p.paused_at is not null)`

// PausedTemplates returns the templates that are paused for their caller.
func (st *Store) PausedTemplates(ctx context.Context, templates []CallerTemplate) (map[CallerTemplate]bool, error) {
	ids := store.Column(templates, func(t CallerTemplate) string { return t.TemplateID })
	callers := store.Column(templates, func(t CallerTemplate) int64 { return t.CallerID })
	paused := map[CallerTemplate]bool{}
	var t CallerTemplate
	err := store.QueryEach(ctx, st.db.Hot, pausedTemplatesSQL, []any{ids, callers}, []any{&t.TemplateID, &t.CallerID}, func() {
		paused[t] = true
	})
	return paused, store.Wrap("paused templates", err)
}

// TemplateCursor is the last template of a page of Templates; zero is before the first page.
type TemplateCursor struct {
	CallerTemplate
	PausedAt *time.Time
}

// subscribeTemplatesSQL begins at the start of the list if the cursor has no template ($1).
const subscribeTemplatesSQL = `
select p.template_id, p.caller_id, coalesce(c.name, ''), p.strikes, p.paused_at, p.reason, p.updated_at
from template_pauses p left join callers c on c.id = p.caller_id
where $1 = '' or (coalesce(p.paused_at, 'infinity'), p.template_id, p.caller_id) > (coalesce($3::timestamptz, 'infinity'), $1::varchar, $2::bigint)
order by coalesce(p.paused_at, 'infinity'), p.template_id, p.caller_id limit $4`

// Templates returns a page of the templates that have strikes: first the paused ones, longest paused first, then the
// others.
func (st *Store) Templates(ctx context.Context, after TemplateCursor, limit int) (page []Template, more bool, err error) {
	page, more, err = store.QueryPage[Template](ctx, st.db.Read, limit, subscribeTemplatesSQL, after.TemplateID, after.CallerID, after.PausedAt)
	return page, more, store.Wrap("subscribe templates", err)
}

// resumeTemplateSQL deletes pauses, and returns them as JSON for the audit entry.
const resumeTemplateSQL = `
with p as (
    delete from template_pauses where template_id = $1 and ($2::bigint is null or caller_id = $2) and paused_at is not null returning *
)
select jsonb_agg(to_jsonb(p) - '{template_id,updated_at}'::text[] order by caller_id)::text from p having count(*) > 0`

// releasedSQL makes up to $4 tasks of the template $1 due: those that wait because their last claim was released
// (ended = 3). It leaves out tasks that wait for their send time: these were never claimed. The query starts from the live
// tasks, which are fewer than the sends of a template. It skips locked rows.
const releasedSQL = `
with c as materialized (
    select l.id from task_live l
    where l.state = 0 and l.due_at > now() and l.queue = $2 and l.ended = 3 and ($3::bigint is null or l.caller_id = $3)
        and (select s.template_id from subscribe_message_sends s where s.task_id = l.id) = $1
    limit $4
    for update skip locked
)
update task_live set due_at = now() where id = any(array(select id from c))`

const maxReleased = 5000 // tasks that one statement makes due

// ResumeTemplate ends the pauses of a template and resets its errors, for one caller or, if callerID is nil, for all. It
// makes the released tasks of this caller, or of all callers, due and returns their number. Wake the function sweep
// afterwards. The error is task.CodeNotFound if the template is not paused.
func (st *Store) ResumeTemplate(ctx context.Context, templateID string, callerID *int64, by store.Operator) (due int64, err error) {
	err = st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		ended, err := store.QueryOne[struct{ Pauses string }](ctx, tx, "paused template", resumeTemplateSQL, templateID, callerID)
		if err != nil {
			return store.AuditEntry{}, err
		}
		due, err = rescheduleReleased(ctx, tx, templateID, callerID)
		return store.AuditEntry{Action: "subscribe_template.resume", Subject: "subscribe_template/" + templateID, Before: `{"pauses": ` + ended.Pauses + `}`}, err
	})
	return due, store.Wrap("resume template", err)
}

func rescheduleReleased(ctx context.Context, tx pgx.Tx, templateID string, callerID *int64) (due int64, err error) {
	for {
		done, err := tx.Exec(ctx, releasedSQL, templateID, task.WeChatQueue, callerID, maxReleased)
		if due += done.RowsAffected(); err != nil || done.RowsAffected() < maxReleased {
			return due, err
		}
	}
}
