package subscribe

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// insertLog inserts the row of a message unless the row exists or is archived. Of several concurrent submissions, the unique
// index lets only one insert the row.
const insertLog = `
with g as (
    insert into subscribe_message_logs (business_type, business_id, template_type, receiver_user_id, template_id, receiver_openid,
        message_data, page_path, caller_id, task_id)
    select $20::varchar, $21::numeric, $22::varchar, $23::numeric, $2, $3, $4, $5, $8, $1
    where not exists (select from archived_subscribe_message_logs a
        where a.business_type = $20 and a.business_id = $21 and a.template_type = $22 and a.receiver_user_id = $23)
    on conflict (business_type, business_id, template_type, receiver_user_id) do nothing
    returning id
)`

// updateLog starts the next send of a row. Earlier sends stay in the history of the row. $21 is the number of retries to
// add: 1, or 0 if the new task replaces a waiting task, whose retry is counted already.
//
// doubtful means that an earlier send may have been delivered, and may have used up the user's consent to the template.
// doubtful is reset if the message was sent, or if the template or the receiver changes, which needs another consent.
const updateLog = `
with g as (
    update subscribe_message_logs set template_id = $2, receiver_openid = $3, message_data = $4, page_path = $5,
        task_id = $1, send_status = 0, error_code = null, error_message = null, send_time = now(), updated_at = now(),
        retry_count = retry_count + $21, retries_before = retry_count + $21,
        doubtful = doubtful and send_status <> 1 and template_id = $2::varchar and receiver_openid = $3::varchar
    where id = $20
    returning id
)`

// insertTask creates the task of a send of the row in g. A task with a claim ID ($16) is claimed from the start.
const insertTask = `
, w as materialized (
    select g.id, case when $16::bigint is not null then 2 when $13::timestamptz > now() then 0 else 1 end as state,
        greatest($13::timestamptz, now()) + $14::interval as ends_at,
        now() + $17::interval as lease_until
    from g
), s as (
    insert into subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data, page_path, lang, miniprogram_state)
    select $1, id, $2, $3, $4, $5, $6, $7 from w
), b as (
    insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, send_at, expires_at, callback_url, metadata)
    select $1, $8, $9, 5, $10, $11, '', $18, $13, ends_at, $12, $19::jsonb || jsonb_build_object('subscribe_id', id::text) from w
), l as (
    insert into task_live (id, state, priority, max_retries, on_unknown, queue, due_at, expires_at, caller_id, callback, claim_id, app_id,
        claimed_by)
    select $1, state, 5, $10, $11, $9, case state when 2 then lease_until when 0 then $13 else ends_at end, ends_at, $8, $12 is not null,
        $16, $15, case when $16::bigint is not null then $8::bigint end
    from w
)`

// logClaim logs that the task is claimed.
const logClaim = `, c as (
    insert into send_logs (task_id, claim_id, app_id, phone_number, content) select $1, $16, $15, '', $18 from w
)`

// insertEvent writes the event of the new task, if a callback URL or an endpoint of the caller receives it.
const insertEvent = `, e as (
    insert into event_outbox (kind, caller_id, ids)
    select kind, caller_id, array[$1]
    from (select $8::bigint as caller_id, 'task.' || (array['scheduled', 'pending', 'processing'])[state + 1] as kind from w) changed
    where $12 is not null or ` + store.HasEndpoint + `
)`

const selectResult = `
select id, state, lease_until from w`

const (
	insertLogSQL               = insertLog + insertTask + selectResult
	insertLogWithEventsSQL     = insertLog + insertTask + insertEvent + selectResult
	insertClaimedSQL           = insertLog + insertTask + logClaim + selectResult
	insertClaimedWithEventsSQL = insertLog + insertTask + logClaim + insertEvent + selectResult
	updateLogSQL               = updateLog + insertTask + selectResult
	updateLogWithEventsSQL     = updateLog + insertTask + insertEvent + selectResult
	updateClaimedSQL           = updateLog + insertTask + logClaim + selectResult
	updateClaimedWithEventsSQL = updateLog + insertTask + logClaim + insertEvent + selectResult
)

// pickInsertSQL returns the statement for the first send of a message.
func (s *Submission) pickInsertSQL(m store.EventMode) string {
	if s.Lease > 0 {
		return m.Pick(insertClaimedSQL, insertClaimedWithEventsSQL)
	}
	return m.Pick(insertLogSQL, insertLogWithEventsSQL)
}

// pickUpdateSQL returns the statement for a later send of a message.
func (s *Submission) pickUpdateSQL(m store.EventMode) string {
	if s.Lease > 0 {
		return m.Pick(updateClaimedSQL, updateClaimedWithEventsSQL)
	}
	return m.Pick(updateLogSQL, updateLogWithEventsSQL)
}

func (s *Submission) args(claimID int64) []any {
	return []any{
		s.TaskID, s.TemplateID, s.ReceiverOpenID, string(s.Data), store.OrNull(s.Page), store.OrNull(s.Lang), store.OrNull(s.MiniprogramState), s.CallerID,
		s.Queue, s.MaxRetries, int16(s.OnUnknown), store.OrNull(s.CallbackURL), store.TimeOrNull(s.SendAt), store.OrNull(s.TTL), store.OrNull(s.AppID),
		store.OrNull(claimID), s.Lease, task.Cut(s.summary(), task.MaxContent), string(s.Metadata),
	}
}

// Submit creates the row of a message, or sends a failed message again, also one that waits for a retry. It does nothing
// (Skipped) if the message was sent or is being sent. The error is task.CodeKeyInFlight while another call for this
// message is in progress.
func (st *Store) Submit(ctx context.Context, s *Submission) (out Submitted, err error) {
	claimID := int64(0)
	if s.Lease > 0 {
		if claimID, err = st.tasks.NextClaimID(ctx); err != nil {
			return out, store.Wrap("subscribe", err)
		}
	}
	err = st.db.RetryLostCommit(ctx, func(bool) error {
		out, err = st.submitOnce(ctx, s, claimID)
		return err
	})
	if store.TimedOutOnRowOf(err, "subscribe_message_logs", "uk_business_template_receiver", "task_live") {
		err = &task.Error{Code: task.CodeKeyInFlight, Message: "another call for this message is in progress; repeat the same call", RetryAfter: time.Second}
	}
	return out, store.Wrap("subscribe", err)
}

const hasOtherSendSQL = `select exists(select from subscribe_message_sends where log_id = $1 and task_id <> $2)`

func (st *Store) submitOnce(ctx context.Context, s *Submission, claimID int64) (out Submitted, err error) {
	conn, err := st.db.Hot.Acquire(ctx)
	if err != nil {
		return out, err
	}
	defer conn.Release()
	for {
		if s.Refused == nil {
			out, err = st.insert(ctx, conn.Conn(), s, claimID)
			if err != nil || out.ID != 0 {
				return out, err
			}
		}
		out, err = st.submitExisting(ctx, conn.Conn(), s, claimID)
		err = store.WrapConnectionLost(conn.Conn(), store.RollbackOn(conn.Conn(), err))
		if !errors.Is(err, errStartOver) {
			return out, err
		}
	}
}

// insert creates the row of a message with its first send. It returns the ID 0 if the message has a row, archived or not.
func (st *Store) insert(ctx context.Context, conn *pgx.Conn, s *Submission, claimID int64) (out Submitted, err error) {
	out = Submitted{TaskID: s.TaskID, ClaimID: claimID}
	var batch pgx.Batch
	batch.Queue(store.SetLockTimeoutSQL, store.KeyTimeout)
	batch.Queue(s.pickInsertSQL(st.db.EventMode), append(s.args(claimID), s.key()...)...).QueryRow(func(row pgx.Row) error { return out.scan(row) })
	err = conn.SendBatch(ctx, &batch).Close()
	switch {
	case store.Violates(err, "archived_business_template_receiver"): // the row was archived while this insert waited for it
		return Submitted{}, nil
	case err != nil:
		return out, store.WrapConnectionLost(conn, err)
	case out.ID != 0 && st.db.EventMode == store.AllEvents:
		st.db.OnEvents() // the event is not written if no endpoint or callback URL receives it
	}
	return out, nil
}

// scan reads the row that the statement of pickInsertSQL or pickUpdateSQL returns. Without a row, out is not changed.
func (out *Submitted) scan(row pgx.Row) error {
	err := row.Scan(&out.ID, &out.State, &out.LeaseUntil)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if out.State != task.Processing {
		out.LeaseUntil = time.Time{}
	}
	return err
}

const logOfSQL = `
select id, task_id, caller_id from subscribe_message_logs g ` + whereKey

// lockLogSQL locks a row and compares its data with the data of a submission.
const lockLogSQL = readLogSQL + ` for update`

const readLogSQL = `
select task_id, send_status, caller_id,
    template_id = $2 and receiver_openid = $3 and message_data = $4::jsonb and coalesce(page_path, '') = $5
from subscribe_message_logs where id = $1`

// submitExisting handles the submission of a message that already has a row. If another caller submits the message and may not
// resend it, nothing is locked: claims skip locked tasks, so repeated submissions could delay the message.
func (st *Store) submitExisting(ctx context.Context, conn *pgx.Conn, s *Submission, claimID int64) (out Submitted, err error) {
	var newest task.ID
	var owner int64
	err = conn.QueryRow(ctx, logOfSQL, s.key()...).Scan(&out.ID, &newest, &owner)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return submitArchived(ctx, conn, s)
	case err != nil:
		return out, err
	}
	lock, rowSQL := tasks.Lock, lockLogSQL
	if owner != s.CallerID && !s.MayResendOthers {
		lock, rowSQL = tasks.Read, readLogSQL
	}
	before, found, now, err := lockTask(ctx, conn, newest, lock)
	if err != nil {
		return out, err
	}
	var same bool
	err = conn.QueryRow(ctx, rowSQL, out.ID, s.TemplateID, s.ReceiverOpenID, string(s.Data), s.Page).Scan(&out.TaskID, &out.Status, &owner, &same)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return out, errStartOver
	case err != nil:
		return out, err
	case out.TaskID != newest:
		return out, errStartOver
	case !found && out.Status == task.SubscribeSending: // the task is in neither task_live nor task_done
		return out, store.Busy()
	case newest == s.TaskID: // an earlier try of this call was committed
		out = Submitted{ID: out.ID, TaskID: newest, State: before.State, Status: out.Status, ClaimID: before.ClaimID, LeaseUntil: before.DueAt}
		if err := conn.QueryRow(ctx, hasOtherSendSQL, out.ID, newest).Scan(&out.Again); err != nil {
			return out, err
		}
		return out, store.Commit(ctx, conn)
	case s.mustHide(owner):
		return Submitted{}, ErrOthersMessage()
	case out.Status == task.SubscribeSent, found && !before.Replaceable():
		out.State, out.Skipped, out.DataDiffers = taskState(before, found, out.Status), true, !same && s.mayCompare(owner)
		return out, store.Commit(ctx, conn)
	case s.Refused != nil:
		return out, s.Refused
	case owner != s.CallerID && !s.MayResendOthers:
		return out, task.Refuse(task.CodeForbidden, "another caller submitted this message and it failed; that caller or an admin may send it again")
	}
	return st.sendAgain(ctx, conn, s, out.ID, before, claimID, now, func(*pgx.Batch) {})
}

// lockTask begins a transaction and locks the task of a row with tasks.Lock, or only reads it with tasks.Read. Always lock
// the task before the row: reports do the same, so two transactions never deadlock. now is by the database's clock.
func lockTask(ctx context.Context, conn *pgx.Conn, id task.ID, lock func(context.Context, *pgx.Conn, []task.ID, string) (tasks.Locked, error)) (t task.Task, found bool, now time.Time, err error) {
	locked, err := lock(ctx, conn, []task.ID{id}, tasks.LockTimeout)
	if err != nil {
		return t, false, now, err
	}
	t, found, err = locked.Of(id)
	return t, found, locked.Now, err
}

// sendAgain starts the next send of the locked row and commits the transaction. If the previous task (before) is not final,
// sendAgain cancels it: the task waits for a retry or, in task.RecordedQueue, for a claim that never comes. extra adds
// statements to the transaction.
func (st *Store) sendAgain(ctx context.Context, conn *pgx.Conn, s *Submission, id int64, before task.Task, claimID int64, now time.Time,
	extra func(*pgx.Batch)) (Submitted, error) {
	out := Submitted{TaskID: s.TaskID, ClaimID: claimID, Again: true}
	var batch pgx.Batch
	notifier, retries := st.db.NewNotifier(), 1
	if !before.ID.IsZero() && !before.State.Final() {
		retries = 0
		after, err := before.Cancel(now)
		if err != nil {
			return out, err
		}
		notifier = st.tasks.QueueChanges(&batch, []tasks.Change{{Before: before, After: after}})
		tasks.QueueVerdicts(&batch, []tasks.VerdictLog{{ID: before.ID, Verdict: task.CancelledManually, Message: "replaced by a newer submission"}})
	}
	batch.Queue(s.pickUpdateSQL(st.db.EventMode), append(s.args(claimID), id, retries)...).QueryRow(func(row pgx.Row) error { return out.scan(row) })
	extra(&batch)
	batch.Queue("commit")
	if st.db.EventMode == store.AllEvents {
		notifier.AddRows(1)
	}
	err := notifier.Notify(conn.SendBatch(ctx, &batch).Close())
	return out, err // the batch has changed out
}

// Resend sends the message of a row again unchanged, for an operator. The error is task.CodeNotFound if there is no such
// row, or task.CodeConflict if the message is being sent, or was sent and force is false. s must have TaskID, MaxRetries,
// OnUnknown, CallbackURL and Metadata; Resend fills in the other fields from the row and its newest send.
func (st *Store) Resend(ctx context.Context, id int64, s *Submission, force bool, by store.Operator) (out Submitted, err error) {
	err = st.db.WithPartitions(ctx, func() error {
		conn, err := st.db.Hot.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		out, err = st.resendOnce(ctx, conn.Conn(), id, s, force, by)
		return store.RollbackOn(conn.Conn(), err)
	})
	return out, store.Wrap("resend", err)
}

func errChanged() error {
	return task.Busy("another call is changing this message; repeat the same call")
}

const lockLogTaskSQL = `
select g.task_id, g.send_status, coalesce((select lang from subscribe_message_sends where task_id = g.task_id), ''),
    coalesce((select miniprogram_state from subscribe_message_sends where task_id = g.task_id), '')
from subscribe_message_logs g where g.id = $1 for update`

func (st *Store) resendOnce(ctx context.Context, conn *pgx.Conn, id int64, s *Submission, force bool, by store.Operator) (out Submitted, err error) {
	l, err := st.LogByID(ctx, id)
	if err != nil {
		return out, err
	}
	before, found, now, err := lockTask(ctx, conn, l.TaskID, tasks.Lock)
	if err != nil {
		return out, err
	}
	if l.Archived {
		if _, err := conn.Exec(ctx, restoreLogSQL, id); err != nil {
			return out, err
		}
	}
	var newest task.ID
	err = conn.QueryRow(ctx, lockLogTaskSQL, id).Scan(&newest, &l.Status, &s.Lang, &s.MiniprogramState)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // the row was archived meanwhile
		return out, errChanged()
	case err != nil:
		return out, err
	case newest != l.TaskID, !found && l.Status == task.SubscribeSending:
		return out, errChanged()
	case found && !before.State.Final() && !before.Replaceable():
		return out, task.Refuse(task.CodeConflict, "the message is "+before.State.String()+"; a message that is being sent cannot be sent again")
	case l.Status == task.SubscribeSent && !force:
		return out, task.Refuse(task.CodeConflict, `the message was sent; give "force": true to send it twice`)
	}
	s.TemplateID, s.TemplateType, s.BusinessType, s.BusinessID = l.TemplateID, l.TemplateType, l.BusinessType, l.BusinessID
	s.ReceiverUserID, s.ReceiverOpenID, s.Data, s.Page, s.CallerID, s.Queue = l.ReceiverUserID, l.ReceiverOpenID, l.Data, l.Page, l.CallerID, task.WeChatQueue
	return st.sendAgain(ctx, conn, s, id, before, 0, now, func(batch *pgx.Batch) {
		by.QueueAudit(batch, "subscribe.resend", strconv.FormatInt(id, 10), store.MustJSON(map[string]any{"task_id": l.TaskID, "send_status": l.Status}),
			store.MustJSON(map[string]any{"task_id": s.TaskID, "send_status": task.SubscribeSending}))
	})
}
