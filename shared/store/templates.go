package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Template is a row of sms_templates.
type Template struct {
	ID        int32
	Name      string
	Content   string
	Active    bool // only active templates are used
	CreatedAt time.Time
	UpdatedAt time.Time
}

func (t Template) subject() string { return fmt.Sprintf("template/%d", t.ID) }

func (t Template) json() string {
	return mustJSON(map[string]any{"template_name": t.Name, "template_content": t.Content, "is_active": t.Active})
}

const templateColumns = `id, template_name, template_content, is_active, created_at, updated_at`

const insertTemplateSQL = `
insert into sms_templates (template_name, template_content) values ($1, $2) returning ` + templateColumns

// AddTemplate stores a new template, active at once.
func (db *DB) AddTemplate(ctx context.Context, name, content string, by Operator) (t Template, err error) {
	err = db.asAdmin(ctx, by, func(tx pgx.Tx) (auditEntry, error) {
		t, err = rowOf[Template](ctx, tx, "template", insertTemplateSQL, name, content)
		return auditEntry{"template.create", t.subject(), "", t.json()}, err
	})
	return t, failed("add template", err)
}

const lockTemplateSQL = `select ` + templateColumns + ` from sms_templates where id = $1 for update`

const updateTemplateSQL = `
update sms_templates set template_name = $2, template_content = $3, is_active = $4, updated_at = now()
where id = $1
returning ` + templateColumns

// EditTemplate lets edit change a template under its lock; task.CodeNotFound
// when there is none. An edit that changes nothing leaves no trace.
func (db *DB) EditTemplate(ctx context.Context, id int32, by Operator, edit func(*Template)) (t Template, err error) {
	err = db.asAdmin(ctx, by, func(tx pgx.Tx) (auditEntry, error) {
		before, err := rowOf[Template](ctx, tx, "template", lockTemplateSQL, id)
		if err != nil {
			return auditEntry{}, err
		}
		t = before
		if edit(&t); t == before {
			return auditEntry{}, nil
		}
		t, err = rowOf[Template](ctx, tx, "template", updateTemplateSQL, id, t.Name, t.Content, t.Active)
		return auditEntry{before.edited(t), t.subject(), before.json(), t.json()}, err
	})
	return t, failed("edit template", err)
}

// edited names the action that made after of t.
func (t Template) edited(after Template) string {
	switch {
	case t.Name != after.Name || t.Content != after.Content:
		return "template.update"
	case after.Active:
		return "template.activate"
	default:
		return "template.deactivate"
	}
}

const templateSQL = `select ` + templateColumns + ` from sms_templates where id = $1`

// Template finds a template, inactive ones too; task.CodeNotFound when there
// is none.
func (db *DB) Template(ctx context.Context, id int32) (Template, error) {
	t, err := rowOf[Template](ctx, db.read, "template", templateSQL, id)
	return t, failed("template", err)
}

const templatesSQL = `
select ` + templateColumns + ` from sms_templates
where id > $1::bigint and ($2::boolean is null or is_active = $2)
order by id
limit $3`

// Templates lists templates by id; active narrows the list unless it is nil.
// after is the last id of the page before, 0 for the first page.
func (db *DB) Templates(ctx context.Context, active *bool, after int64, limit int) (page []Template, more bool, err error) {
	page, more, err = pageOf[Template](ctx, db.read, limit, templatesSQL, after, active)
	return page, more, failed("templates", err)
}
