package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// DefaultSMS is a row of default_sms_data: the content that is sent once to a phone number, if a
// submission for the number has no content.
type DefaultSMS struct {
	ID          int32
	Phone       string
	Content     string // the text; if UseTemplate, URL-encoded parameters of the active template with the lowest id
	UseTemplate bool
	Sent        bool
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

func (d DefaultSMS) subject() string { return fmt.Sprintf("default/%d", d.ID) }

func (d DefaultSMS) json() string {
	return store.MustJSON(map[string]any{
		"phone_number": d.Phone, "content": d.Content, "use_template": d.UseTemplate, "is_sent": d.Sent,
	})
}

const defaultColumns = `id, phone_number, content, use_template, is_sent, created_at, updated_at`

const insertDefaultSQL = `
insert into default_sms_data (phone_number, content, use_template)
select $1::text, $2::text, $3::boolean where not exists (select from default_sms_data where phone_number = any($4::text[]))
returning ` + defaultColumns

// AddDefault stores the default content of a phone number; task.CodeDefaultExists if the number has one
// in any spelling.
func (st *Store) AddDefault(ctx context.Context, phone, content string, useTemplate bool, by store.Operator) (d DefaultSMS, err error) {
	err = st.db.AuditedAsAdmin(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		d, err = store.QueryOne[DefaultSMS](ctx, tx, "default content", insertDefaultSQL, phone, content, useTemplate, st.country.Spellings(phone))
		return store.AuditEntry{Action: "default.create", Subject: d.subject(), After: d.json()}, err
	})
	if store.Violates(err, "default_sms_data_phone_number_key") || task.CodeOf(err) == task.CodeNotFound {
		err = task.Refuse(task.CodeDefaultExists, "this phone number has default content already; change it with PUT /api/v1/admin/default-sms/{id}")
	}
	return d, store.Wrap("add default", err)
}

const lockDefaultSQL = `select ` + defaultColumns + ` from default_sms_data where id = $1 for update`

const updateDefaultSQL = `
update default_sms_data set content = $2, use_template = $3, is_sent = $4, updated_at = now()
where id = $1
returning ` + defaultColumns

// EditDefault locks a default content and calls edit, which may change Content, UseTemplate and Sent, or refuse with an
// error; task.CodeNotFound if there is none. An edit that changes nothing has no audit entry.
func (st *Store) EditDefault(ctx context.Context, id int32, by store.Operator, edit func(*DefaultSMS) error) (d DefaultSMS, err error) {
	err = st.db.AuditedAsAdmin(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		before, err := store.QueryOne[DefaultSMS](ctx, tx, "default content", lockDefaultSQL, id)
		if err != nil {
			return store.AuditEntry{}, err
		}
		d = before
		if err := edit(&d); err != nil || d == before {
			return store.AuditEntry{}, err
		}
		d, err = store.QueryOne[DefaultSMS](ctx, tx, "default content", updateDefaultSQL, id, d.Content, d.UseTemplate, d.Sent)
		return store.AuditEntry{Action: before.editAction(d), Subject: d.subject(), Before: before.json(), After: d.json()}, err
	})
	return d, store.Wrap("edit default", err)
}

// editAction returns the audit action of the change of d to after.
func (d DefaultSMS) editAction(after DefaultSMS) string {
	if d.Content != after.Content || d.UseTemplate != after.UseTemplate {
		return "default.update"
	}
	return "default.reset"
}

const deleteDefaultSQL = `delete from default_sms_data where id = $1 returning ` + defaultColumns

// DeleteDefault deletes a default content and returns it; task.CodeNotFound if there is none.
func (st *Store) DeleteDefault(ctx context.Context, id int32, by store.Operator) (d DefaultSMS, err error) {
	err = st.db.AuditedAsAdmin(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		d, err = store.QueryOne[DefaultSMS](ctx, tx, "default content", deleteDefaultSQL, id)
		return store.AuditEntry{Action: "default.delete", Subject: d.subject(), Before: d.json()}, err
	})
	return d, store.Wrap("delete default", err)
}

const defaultSQL = `select ` + defaultColumns + ` from default_sms_data where id = $1`

// Default returns a default content by its id; task.CodeNotFound if there is none.
func (st *Store) Default(ctx context.Context, id int32) (DefaultSMS, error) {
	d, err := store.QueryOne[DefaultSMS](ctx, st.db.Read, "default content", defaultSQL, id)
	return d, store.Wrap("default", err)
}

const defaultsSQL = `
select ` + defaultColumns + ` from default_sms_data
where id > $1::bigint and ($2::text[] is null or phone_number = any($2)) and ($3::boolean is null or is_sent = $3)
order by id
limit $4`

// Defaults lists default contents by id. phone selects a number in any spelling; "" selects all. sent selects by Sent; nil
// selects all. after is the last id of the previous page; 0 = the first page.
func (st *Store) Defaults(ctx context.Context, phone string, sent *bool, after int64, limit int) (page []DefaultSMS, more bool, err error) {
	var spellings []string
	if phone != "" {
		spellings = st.country.Spellings(phone)
	}
	page, more, err = store.QueryPage[DefaultSMS](ctx, st.db.Read, limit, defaultsSQL, after, spellings, sent)
	return page, more, store.Wrap("defaults", err)
}
