package subscribe

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Log is a row of subscribe_message_logs.
type Log struct {
	ID             int64
	TemplateID     string
	TemplateType   string
	BusinessType   string
	BusinessID     uint64
	ReceiverUserID uint64
	ReceiverOpenID string
	Data           json.RawMessage
	Page           string
	Status         task.SendStatus
	SendTime       time.Time // when the newest send was submitted or its outcome last changed; of a sent message, when it was sent
	RetryCount     int
	ErrorCode      string
	ErrorMessage   string
	CallerID       int64
	TaskID         task.ID // the task of the newest send
	CreatedAt      time.Time
	UpdatedAt      time.Time
	Archived       bool // the row is in the archive table
}

// logFields are the columns of a row g of subscribe_message_logs, or of its archive. scanLog reads them and Archived.
const logFields = `g.id, g.template_id, g.template_type, g.business_type, g.business_id::text, g.receiver_user_id::text, g.receiver_openid,
    g.message_data::text, coalesce(g.page_path, ''), g.send_status, g.send_time, g.retry_count, coalesce(g.error_code, ''),
    coalesce(g.error_message, ''), g.caller_id, g.task_id, g.created_at, g.updated_at`

const (
	logColumns         = logFields + `, false`
	archivedLogColumns = logFields + `, true`
)

func scanLog(row pgx.CollectableRow) (l Log, err error) {
	var business, receiver string
	err = row.Scan(&l.ID, &l.TemplateID, &l.TemplateType, &l.BusinessType, &business, &receiver, &l.ReceiverOpenID, (*[]byte)(&l.Data), &l.Page, &l.Status,
		&l.SendTime, &l.RetryCount, &l.ErrorCode, &l.ErrorMessage, &l.CallerID, &l.TaskID, &l.CreatedAt, &l.UpdatedAt,
		&l.Archived)
	if err != nil {
		return l, err
	}
	if l.BusinessID, err = strconv.ParseUint(business, 10, 64); err != nil {
		return l, err
	}
	l.ReceiverUserID, err = strconv.ParseUint(receiver, 10, 64)
	return l, err
}

// logs reads a page of at most limit rows.
func (st *Store) logs(ctx context.Context, operation string, limit int, sql string, args ...any) (page []Log, more bool, err error) {
	page, more, err = store.QueryPageBy(ctx, st.db.Read, limit, scanLog, sql, args...)
	return page, more, store.Wrap(operation, err)
}

// oneLog reads the one row that sql returns. The error is task.CodeNotFound if there is none.
func (st *Store) oneLog(ctx context.Context, sql string, args ...any) (Log, error) {
	found, _, err := st.logs(ctx, "subscribe log", 1, sql, args...)
	if err == nil && len(found) == 0 {
		err = store.NotFound("subscribe message")
	}
	if err != nil {
		return Log{}, err
	}
	return found[0], nil
}

const logSQL = `
select ` + logColumns + ` from subscribe_message_logs g where g.id = $1
union all
select ` + archivedLogColumns + ` from archived_subscribe_message_logs g where g.id = $1`

// LogByID returns a row, archived or not. The error is task.CodeNotFound if there is none.
func (st *Store) LogByID(ctx context.Context, id int64) (Log, error) {
	return st.oneLog(ctx, logSQL, id)
}

const messageLogSQL = `
select ` + logColumns + ` from subscribe_message_logs g ` + whereKey + `
union all
select ` + archivedLogColumns + ` from archived_subscribe_message_logs g ` + whereKey

const whereKey = `where g.business_type = $1 and g.business_id = $2::text::numeric and g.template_type = $3 and g.receiver_user_id = $4::text::numeric`

// FindLog returns the row of a message, archived or not. The error is task.CodeNotFound if there is none.
func (st *Store) FindLog(ctx context.Context, businessType string, businessID uint64, templateType string, receiver uint64) (Log, error) {
	return st.oneLog(ctx, messageLogSQL, businessType, strconv.FormatUint(businessID, 10), templateType, strconv.FormatUint(receiver, 10))
}

const businessLogsSQL = `
select ` + logColumns + ` from subscribe_message_logs g ` + ofBusiness + `
union all
select ` + archivedLogColumns + ` from archived_subscribe_message_logs g ` + ofBusiness + `
order by 1 limit $5`

const ofBusiness = `where g.business_type = $1 and g.business_id = $2::text::numeric and g.id > $3 and ($4::bigint is null or g.caller_id = $4)`

// BusinessLogs lists the rows of one business event (such as a booking), sorted by id, archived rows included. If callerID
// is nil, it lists those of all callers.
func (st *Store) BusinessLogs(ctx context.Context, businessType string, businessID uint64, callerID *int64, after int64, limit int) ([]Log, bool, error) {
	return st.logs(ctx, "subscribe logs", limit, businessLogsSQL, store.Unprepared, businessType, strconv.FormatUint(businessID, 10), after, callerID, limit+1)
}

// Each of the two queries has an index: a list of one caller's failures must not read the failures of all callers.
const (
	failedLogsSQL = `
select ` + logColumns + ` from subscribe_message_logs g
where g.send_status = 2 and (g.send_time, g.id) < ($1, $2)
order by g.send_time desc, g.id desc limit $3`

	failedLogsOfCallerSQL = `
select ` + logColumns + ` from subscribe_message_logs g
where g.send_status = 2 and (g.send_time, g.id) < ($1, $2) and g.caller_id = $4
order by g.send_time desc, g.id desc limit $3`
)

// LogCursor is the last row of a page of FailedLogs; zero is before the first page.
type LogCursor struct {
	At time.Time // the SendTime of the row
	ID int64
}

// FailedLogs lists failed messages that are not archived, newest first, of a caller or, if callerID is nil, of all
// callers.
func (st *Store) FailedLogs(ctx context.Context, callerID *int64, after LogCursor, limit int) (page []Log, more bool, err error) {
	sql, args := failedLogsSQL, []any{store.Unprepared, store.TimeOrInfinity(after.At), after.ID, limit + 1}
	if callerID != nil {
		sql, args = failedLogsOfCallerSQL, append(args, *callerID)
	}
	return st.logs(ctx, "failed subscribe logs", limit, sql, args...)
}

// LogFilter selects the rows of Logs. A zero field selects all.
type LogFilter struct {
	CallerID       *int64
	Status         *int
	TemplateID     string
	TemplateType   string
	BusinessType   string
	ReceiverUserID string    // digits
	From, To       time.Time // SendTime is at or after From and before To
	After          LogCursor
}

const logsSQL = `
select ` + logColumns + ` from subscribe_message_logs g
where g.send_time >= $1 and (g.send_time, g.id) < ($2, $3) and ($4::bigint is null or g.caller_id = $4) and ($5::smallint is null or g.send_status = $5)
    and ($6::text = '' or g.template_id = $6) and ($7::text = '' or g.template_type = $7) and ($8::text = '' or g.business_type = $8)
    and ($9::text = '' or g.receiver_user_id = nullif($9, '')::numeric) and g.send_time < $10
order by g.send_time desc, g.id desc limit $11`

// Logs lists rows that are not archived, newest first. The cost grows with the number of rows between From and To.
func (st *Store) Logs(ctx context.Context, f LogFilter, limit int) ([]Log, bool, error) {
	return st.logs(ctx, "subscribe logs", limit, logsSQL, store.Unprepared, f.From, store.TimeOrInfinity(f.After.At), f.After.ID, f.CallerID, f.Status,
		f.TemplateID, f.TemplateType, f.BusinessType, f.ReceiverUserID, store.TimeOrInfinity(f.To), limit+1)
}

// Send is one send of the message of a row.
type Send struct {
	TaskID           task.ID
	LogID            int64
	CallerID         int64 // who submitted this send; only BeginSends sets it
	TemplateID       string
	ReceiverOpenID   string
	Data             json.RawMessage
	Page             string
	Lang             string
	MiniprogramState string
	CreatedAt        time.Time

	MayHaveBeenSent bool // an earlier attempt, of this send or of another one, may have been delivered
	Sent            bool // the message was sent; of a send that BeginSends returns: it must not happen
}

// CallerTemplate returns the template of a send that BeginSends returned.
func (s *Send) CallerTemplate() CallerTemplate {
	return CallerTemplate{s.TemplateID, s.CallerID}
}

const sendColumns = `s.task_id, s.log_id, s.template_id, s.receiver_openid, s.message_data::text, coalesce(s.page_path, ''), coalesce(s.lang, ''),
    coalesce(s.miniprogram_state, ''), s.created_at, g.doubtful, g.send_status = 1`

// beginSendsSQL marks rows that waited for a retry as being sent. It leaves out the row of a task that is not claimed:
// if that task has ended, no report would change the row again.
const beginSendsSQL = `
with claimed as materialized (
    select id from task_live where id = any($1::uuid[]) and state = 2 order by id for update
)
update subscribe_message_logs set send_status = 0, updated_at = now() where send_status = 2 and id = any(array(
    select log_id from subscribe_message_sends where task_id = any(array(select id from claimed)))) and task_id = any(array(select id from claimed))`

const claimedSendsSQL = `
select ` + sendColumns + `, t.caller_id
from subscribe_message_sends s join subscribe_message_logs g on g.id = s.log_id join tasks t on t.id = s.task_id
where s.task_id = any($1::uuid[])`

// BeginSends returns the sends of claimed tasks, and marks their rows as being sent.
func (st *Store) BeginSends(ctx context.Context, ids []task.ID) (sends map[task.ID]Send, err error) {
	sends = make(map[task.ID]Send, len(ids))
	var batch pgx.Batch
	batch.Queue(beginSendsSQL, ids)
	batch.Queue(claimedSendsSQL, ids).Query(func(rows pgx.Rows) error {
		_, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Send, err error) {
			err = s.scan(row, &s.CallerID)
			sends[s.TaskID] = s
			return s, err
		})
		return err
	})
	return sends, store.Wrap("begin sends", st.db.Hot.SendBatch(ctx, &batch).Close())
}

func scanSend(row pgx.CollectableRow) (s Send, err error) {
	err = s.scan(row)
	return s, err
}

// scan reads sendColumns, and the columns after them into more.
func (s *Send) scan(row pgx.CollectableRow, more ...any) error {
	return row.Scan(append([]any{&s.TaskID, &s.LogID, &s.TemplateID, &s.ReceiverOpenID, (*[]byte)(&s.Data), &s.Page, &s.Lang, &s.MiniprogramState, &s.CreatedAt,
		&s.MayHaveBeenSent, &s.Sent}, more...)...)
}

const recordedSendSQL = `
select s.task_id from subscribe_message_sends s join tasks t on t.id = s.task_id
where s.log_id = $1 and t.queue = '` + task.RecordedQueue + `' and (exists (select from task_live l where l.id = s.task_id and l.claim_id = $2)
    or exists (select from task_done d where d.id = s.task_id and d.claim_id = $2))
limit 1`

// RecordedSend returns the task of a send that the caller recorded itself (task.RecordedQueue). id is the row of its
// message, and claim is the newest claim of the task. found is false if there is no such send, or if it is archived.
func (st *Store) RecordedSend(ctx context.Context, id, claim int64) (send task.ID, found bool, err error) {
	err = st.db.Hot.QueryRow(ctx, recordedSendSQL, id, claim).Scan(&send)
	if errors.Is(err, pgx.ErrNoRows) {
		return send, false, nil
	}
	return send, err == nil, store.Wrap("recorded send", err)
}

const historySQL = `
select ` + sendColumns + ` from subscribe_message_sends s join subscribe_message_logs g on g.id = s.log_id
` + sendsBefore + `
union all
select ` + sendColumns + ` from archived_subscribe_message_sends s join archived_subscribe_message_logs g on g.id = s.log_id
` + sendsBefore + `
order by created_at desc, task_id desc limit $4`

const sendsBefore = `where s.log_id = $1 and (s.created_at, s.task_id) < ($2, $3)`

// SendCursor is the last send of a page of History; zero is before the first page.
type SendCursor struct {
	At     time.Time // the CreatedAt of the send
	TaskID task.ID
}

// History returns a page of the sends of a row, newest first.
func (st *Store) History(ctx context.Context, id int64, after SendCursor, limit int) (page []Send, more bool, err error) {
	page, more, err = store.QueryPageBy(ctx, st.db.Read, limit, scanSend, historySQL, id, store.TimeOrInfinity(after.At), after.TaskID, limit+1)
	return page, more, store.Wrap("subscribe history", err)
}
