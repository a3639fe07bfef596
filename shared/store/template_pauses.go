package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// SubscribeTemplate is a template of subscribe messages that errors speak against.
type SubscribeTemplate struct {
	ID        string
	Strikes   int        // errors in a row
	PausedAt  *time.Time // nil = it is not paused yet
	Reason    string     // the newest error
	UpdatedAt time.Time
}

func (t SubscribeTemplate) subject() string { return "subscribe_template/" + t.ID }

func (t SubscribeTemplate) json() string {
	return mustJSON(map[string]any{"strikes": t.Strikes, "paused_at": t.PausedAt, "reason": t.Reason})
}

// templateStrikes is how many errors in a row pause a template.
const templateStrikes = 3

const strikeTemplateSQL = `
insert into template_pauses as t (template_id, strikes, reason) values ($1, 1, $2)
on conflict (template_id) do update set strikes = least(t.strikes, 32766) + 1, reason = excluded.reason, updated_at = now(),
    paused_at = case when t.strikes + 1 >= $3 then coalesce(t.paused_at, now()) end
returning paused_at is not null`

// StrikeTemplate counts an error that a template is to blame for; with the third
// in a row it is paused. paused says that it is, by this error or before.
func (db *DB) StrikeTemplate(ctx context.Context, templateID, reason string) (paused bool, err error) {
	err = db.hot.QueryRow(ctx, strikeTemplateSQL, templateID, task.Cut(storable(reason), task.MaxResult), templateStrikes).Scan(&paused)
	return paused, failed("strike template", err)
}

const clearTemplateSQL = `delete from template_pauses where template_id = $1 and paused_at is null`

// ClearTemplate forgets the strikes of a template that was just sent with success.
// One that is paused stays so: that is an operator's to lift.
func (db *DB) ClearTemplate(ctx context.Context, templateID string) error {
	_, err := db.hot.Exec(ctx, clearTemplateSQL, templateID)
	return failed("clear template", err)
}

const pausedTemplatesSQL = `select template_id from template_pauses where template_id = any($1::varchar[]) and paused_at is not null`

// PausedTemplates gives those of the templates that are paused.
func (db *DB) PausedTemplates(ctx context.Context, ids []string) (map[string]bool, error) {
	rows, err := db.hot.Query(ctx, pausedTemplatesSQL, ids)
	if err != nil {
		return nil, failed("paused templates", err)
	}
	paused := map[string]bool{}
	var id string
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		paused[id] = true
		return nil
	})
	return paused, failed("paused templates", err)
}

const subscribeTemplateColumns = `template_id, strikes, paused_at, reason, updated_at`

const subscribeTemplatesSQL = `select ` + subscribeTemplateColumns + ` from template_pauses order by paused_at, template_id`

// SubscribeTemplates gives the templates that have strikes: the paused ones,
// longest paused first, and then the others.
func (db *DB) SubscribeTemplates(ctx context.Context) ([]SubscribeTemplate, error) {
	rows, err := db.read.Query(ctx, subscribeTemplatesSQL)
	if err != nil {
		return nil, failed("subscribe templates", err)
	}
	templates, err := pgx.CollectRows(rows, pgx.RowToStructByPos[SubscribeTemplate])
	return templates, failed("subscribe templates", err)
}

const liftTemplateSQL = `
delete from template_pauses where template_id = $1 and paused_at is not null returning ` + subscribeTemplateColumns

// releasedSQL makes tasks of a template due that were given back and wait since
// (ended = 3). One that waits for its send time was never claimed. Those that are
// to be waited for are found from the tasks' side: sends are kept for ever. Rows
// that somebody else is changing are left to that.
const releasedSQL = `
with c as materialized (
    select l.id from task_live l
    where l.state = 0 and l.due_at > now() and l.queue = $2 and l.ended = 3
        and (select s.template_id from subscribe_message_sends s where s.task_id = l.id) = $1
    limit $3
    for update skip locked
)
update task_live set due_at = now() where id = any(array(select id from c))`

// releasedRows bounds one statement.
const releasedRows = 5000

// LiftTemplate ends the pause of a template, with all strikes against it, and
// makes the tasks due that were given back and wait: so many. task.CodeNotFound
// when it is not paused. Have sweep woken.
func (db *DB) LiftTemplate(ctx context.Context, templateID string, by Operator) (due int64, err error) {
	err = db.byHand(ctx, by, func(tx pgx.Tx) (deed, error) {
		t, err := rowOf[SubscribeTemplate](ctx, tx, "paused template", liftTemplateSQL, templateID)
		if err != nil {
			return deed{}, err
		}
		due, err = lifted(ctx, tx, templateID)
		return deed{"subscribe_template.resume", t.subject(), t.json(), ""}, err
	})
	return due, failed("lift template", err)
}

func lifted(ctx context.Context, tx pgx.Tx, templateID string) (due int64, err error) {
	for {
		done, err := tx.Exec(ctx, releasedSQL, templateID, task.WeChatQueue, releasedRows)
		if due += done.RowsAffected(); err != nil || done.RowsAffected() < releasedRows {
			return due, err
		}
	}
}
