package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
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
	return store.MustJSON(map[string]any{"template_name": t.Name, "template_content": t.Content, "is_active": t.Active})
}

const templateColumns = `id, template_name, template_content, is_active, created_at, updated_at`

const insertTemplateSQL = `
insert into sms_templates (template_name, template_content) values ($1, $2) returning ` + templateColumns

// AddTemplate stores a new template, active at once.
func (st *Store) AddTemplate(ctx context.Context, name, content string, by store.Operator) (t Template, err error) {
	err = st.db.AuditedAsAdmin(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		t, err = store.QueryOne[Template](ctx, tx, "template", insertTemplateSQL, name, content)
		return store.AuditEntry{Action: "template.create", Subject: t.subject(), After: t.json()}, err
	})
	return t, store.Wrap("add template", err)
}

const lockTemplateSQL = `select ` + templateColumns + ` from sms_templates where id = $1 for update`

const updateTemplateSQL = `
update sms_templates set template_name = $2, template_content = $3, is_active = $4, updated_at = now()
where id = $1
returning ` + templateColumns

// EditTemplate locks a template and calls edit, which may change it; task.CodeNotFound if there is none.
// An edit that changes nothing has no audit entry.
func (st *Store) EditTemplate(ctx context.Context, id int32, by store.Operator, edit func(*Template)) (t Template, err error) {
	err = st.db.AuditedAsAdmin(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		before, err := store.QueryOne[Template](ctx, tx, "template", lockTemplateSQL, id)
		if err != nil {
			return store.AuditEntry{}, err
		}
		t = before
		if edit(&t); t == before {
			return store.AuditEntry{}, nil
		}
		t, err = store.QueryOne[Template](ctx, tx, "template", updateTemplateSQL, id, t.Name, t.Content, t.Active)
		return store.AuditEntry{Action: before.editAction(t), Subject: t.subject(), Before: before.json(), After: t.json()}, err
	})
	return t, store.Wrap("edit template", err)
}

// editAction returns the audit action of the change of t to after.
func (t Template) editAction(after Template) string {
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

// Template returns a template, active or not; task.CodeNotFound if there is none.
func (st *Store) Template(ctx context.Context, id int32) (Template, error) {
	t, err := store.QueryOne[Template](ctx, st.db.Read, "template", templateSQL, id)
	return t, store.Wrap("template", err)
}

const templatesSQL = `
select ` + templateColumns + ` from sms_templates
where id > $1::bigint and ($2::boolean is null or is_active = $2)
order by id
limit $3`

// Templates lists templates by id. active selects by Active; nil selects all. after is the last id of
// the previous page; 0 = the first page.
func (st *Store) Templates(ctx context.Context, active *bool, after int64, limit int) (page []Template, more bool, err error) {
	page, more, err = store.QueryPage[Template](ctx, st.db.Read, limit, templatesSQL, after, active)
	return page, more, store.Wrap("templates", err)
}
