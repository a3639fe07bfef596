-- Alerts, maintenance and bulk changes.

CREATE TABLE alerts (
    id            uuid PRIMARY KEY,
    kind          text NOT NULL CHECK (kind IN ('failure_rate', 'backlog', 'stream_full')),
    queue         text COLLATE "C" NOT NULL,
    value         double precision NOT NULL,
    threshold     double precision NOT NULL,
    since         timestamptz NOT NULL DEFAULT now(),
    cleared_at    timestamptz,
    cleared_value double precision,
    CHECK ((cleared_at IS NULL) = (cleared_value IS NULL))
);
CREATE UNIQUE INDEX alerts_open ON alerts (kind, queue) WHERE cleared_at IS NULL;
CREATE INDEX alerts_cleared ON alerts (cleared_at, id) WHERE cleared_at IS NOT NULL;
COMMENT ON TABLE alerts IS 'Queues and streams over a threshold. One row is one incident; at most one is open for each kind and queue.';
COMMENT ON COLUMN alerts.kind IS 'failure_rate (value is a fraction of 1), backlog (value is a number of tasks) or stream_full (value is the fraction of its bytes that is used).';
COMMENT ON COLUMN alerts.queue IS 'The queue. Of stream_full the stream: EVENTS, MESSAGES, USERS, DEADLETTERS, or ACCEPTED, even if TWO_PHASE_STREAM is another name.';

CREATE TABLE upkeep (
    what     text PRIMARY KEY,
    begun_at timestamptz NOT NULL DEFAULT '-infinity',
    place    jsonb,
    seq      bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE upkeep IS 'When each kind of maintenance last began, in any process, so that another process does not repeat it too early. begun_at is -infinity if the last run left work or failed. Migrate inserts the rows.';
COMMENT ON COLUMN upkeep.what IS 'The kind of maintenance: maintenance (partitions, closed days, archive), events (trimming the stream) or alerts.';
COMMENT ON COLUMN upkeep.place IS 'Where an interrupted archive run continues: {"table", "at", "key"}.';
COMMENT ON COLUMN upkeep.seq IS 'The sequence number where the next scan of a stream continues; 0: at its beginning.';

-- The function sweep runs a bulk change in batches. Each batch is one transaction, which also stores the position that it reached. So
-- a killed process neither repeats nor skips a task. A bulk change runs only while its operator is still allowed to make the change.
CREATE TABLE bulk_changes (
    id          uuid PRIMARY KEY,
    caller_id   bigint NOT NULL,
    caller_name varchar(50) NOT NULL,
    request_id  varchar(50) NOT NULL,
    token_salt  bytea CHECK (octet_length(token_salt) <= 64),
    token_proof bytea CHECK (octet_length(token_proof) <= 64),
    action      text NOT NULL,
    filter      jsonb NOT NULL, -- the type json would accept texts that ->> cannot read, such as \u0000
    reason      varchar(500) NOT NULL,
    matched     integer NOT NULL,
    place       uuid,
    looked      integer NOT NULL DEFAULT 0,
    changed     integer NOT NULL DEFAULT 0,
    refused     integer NOT NULL DEFAULT 0,
    last_error  varchar(500),
    leased_to   timestamptz,
    stopped_by  varchar(50),
    stop_reason varchar(100),
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    CONSTRAINT bulk_changes_values CHECK (action IN ('cancel', 'retry', 'succeeded', 'failed', 'resend')
        AND octet_length(filter::text) <= 4096 AND least(matched, looked, changed, refused) >= 0)
);
CREATE INDEX bulk_changes_running ON bulk_changes (leased_to, id) WHERE finished_at IS NULL;
CREATE INDEX bulk_changes_finished ON bulk_changes (finished_at, id) WHERE finished_at IS NOT NULL;
COMMENT ON TABLE bulk_changes IS 'Changes of all tasks that match a filter, made by operators.';
COMMENT ON COLUMN bulk_changes.token_salt IS 'The salt of token_proof.';
COMMENT ON COLUMN bulk_changes.token_proof IS 'The result of the function token_proof for the salt and the token of the operator that began the change. Null: the built-in admin began it.';
COMMENT ON COLUMN bulk_changes.action IS 'cancel, retry; or the resolution of held tasks: succeeded, failed, resend.';
COMMENT ON COLUMN bulk_changes.filter IS 'Which tasks to change, by state, reason, queue, queues, phone_number, source, caller_id, from, to.';
COMMENT ON COLUMN bulk_changes.reason IS 'Why, in the words of the operator; it is stored as the result of tasks that are resolved.';
COMMENT ON COLUMN bulk_changes.matched IS 'How many tasks matched when the bulk change was created; at most so many are changed.';
COMMENT ON COLUMN bulk_changes.place IS 'The id of the last task that was checked; tasks are checked newest first. Null before the first batch.';
COMMENT ON COLUMN bulk_changes.refused IS 'How many tasks could not be changed, such as those claimed meanwhile; last_error is the reason for the last of them.';
COMMENT ON COLUMN bulk_changes.leased_to IS 'Until this time one process runs a batch. Null before the first batch.';
COMMENT ON COLUMN bulk_changes.stopped_by IS 'The operator who stopped it before its end; null if none did.';
COMMENT ON COLUMN bulk_changes.stop_reason IS 'Why the service stopped it before its end; null if it did not.';
