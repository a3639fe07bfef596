-- Changes of all tasks that match a filter. The function sweep runs them in batches; each batch is one transaction that also stores
-- the position that it reached, so that a killed process neither repeats nor skips a task.
CREATE TABLE bulk_changes (
    id          uuid PRIMARY KEY,
    caller_id   bigint NOT NULL,
    caller_name varchar(50) NOT NULL,
    request_id  varchar(50) NOT NULL,
    action      text NOT NULL,
    filter      json NOT NULL,
    reason      varchar(500) NOT NULL,
    matched     integer NOT NULL,
    place       uuid,
    looked      integer NOT NULL DEFAULT 0,
    changed     integer NOT NULL DEFAULT 0,
    refused     integer NOT NULL DEFAULT 0,
    last_error  varchar(500),
    leased_to   timestamptz,
    stopped_by  varchar(50),
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    CONSTRAINT bulk_changes_bounds CHECK (action IN ('cancel', 'retry', 'succeeded', 'failed', 'resend')
        AND octet_length(filter::text) <= 4096 AND least(matched, looked, changed, refused) >= 0
        AND leased_to BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND created_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND finished_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00')
);
CREATE INDEX bulk_changes_running ON bulk_changes (leased_to, id) WHERE finished_at IS NULL;
CREATE INDEX bulk_changes_finished ON bulk_changes (finished_at, id) WHERE finished_at IS NOT NULL;
COMMENT ON TABLE bulk_changes IS 'Changes of all tasks that match a filter, made by operators.';
COMMENT ON COLUMN bulk_changes.action IS 'cancel, retry; or the resolution of held tasks: succeeded, failed, resend.';
COMMENT ON COLUMN bulk_changes.filter IS 'Which tasks to change, by state, reason, queue, queues, phone_number, source, caller_id, from, to.';
COMMENT ON COLUMN bulk_changes.reason IS 'Why, in the words of the operator; it is stored as the result of tasks that are resolved.';
COMMENT ON COLUMN bulk_changes.matched IS 'How many tasks matched when it began; no more are changed.';
COMMENT ON COLUMN bulk_changes.place IS 'The id of the last task that was checked; tasks are checked newest first. Null before the first batch.';
COMMENT ON COLUMN bulk_changes.refused IS 'Tasks that could not be changed, such as those claimed meanwhile; last_error is the reason for the last of them.';
COMMENT ON COLUMN bulk_changes.leased_to IS 'Until this time one process runs a batch. Null before the first batch.';
COMMENT ON COLUMN bulk_changes.stopped_by IS 'Who stopped it before its end; null if nobody did.';

COMMENT ON COLUMN callers.roles IS 'submitter, sender, receiver, viewer, trigger, admin.';
COMMENT ON COLUMN report_logs.verdict IS 'The result: applied, already, stale_claim (changed nothing); of a lease: extended, sending (extended, about to send); by sweep: timeout_retry, timeout_held, timeout_failed, expired; by an operator: cancelled, resolved, retried.';
