-- A task is written once as a body (tasks), lives as one narrow row while it
-- is not final (task_live) and ends as one result row (task_done).

-- A process takes claim ids in blocks, so that it knows a claim's id before the claim: ids are unique, not in order.
CREATE SEQUENCE claim_seq INCREMENT BY 1000;

CREATE TABLE tasks (
    id           uuid PRIMARY KEY,
    seq          bigint GENERATED ALWAYS AS IDENTITY,
    caller_id    bigint NOT NULL,
    queue        text COLLATE "C" NOT NULL CHECK (octet_length(queue) BETWEEN 1 AND 63),
    priority     smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    max_retries  smallint NOT NULL CHECK (max_retries BETWEEN 0 AND 10),
    on_unknown   smallint NOT NULL CHECK (on_unknown BETWEEN 0 AND 2),
    phone_number varchar(20) NOT NULL,
    content      varchar(200) NOT NULL,
    source       varchar(50),
    send_at      timestamptz,
    expires_at   timestamptz,
    callback_url text,
    metadata     jsonb,
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX idx_sms_tasks_phone ON tasks (phone_number, id);

-- state: 0 scheduled, 1 pending, 2 processing, 3 held.
-- due_at: when sweep must look: the send time, the end of the lease, or the expiry.
-- claim_id, app_id: the newest claim, kept after it ended; ended says how:
-- 0 not yet, 1 failed, 2 unknown, 3 released, 4 timeout, 5 succeeded, 6 by an operator.
CREATE TABLE task_live (
    id            uuid PRIMARY KEY,
    state         smallint NOT NULL CHECK (state BETWEEN 0 AND 3),
    priority      smallint NOT NULL,
    retry_count   smallint NOT NULL DEFAULT 0,
    max_retries   smallint NOT NULL,
    on_unknown    smallint NOT NULL,
    ended         smallint NOT NULL DEFAULT 0,
    marks_sending boolean NOT NULL DEFAULT false,
    queue         text COLLATE "C" NOT NULL,
    due_at        timestamptz,
    expires_at    timestamptz,
    updated_at    timestamptz NOT NULL DEFAULT now(),
    claim_id      bigint,
    app_id        varchar(50),
    sending_at    timestamptz,
    result        varchar(500),
    error_code    varchar(50),
    CHECK (state <> 0 OR due_at IS NOT NULL),
    CHECK (state <> 2 OR (due_at IS NOT NULL AND claim_id IS NOT NULL AND app_id IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, vacuum_truncate = off);
-- The order of seed 001 section 6.3 without a sort: new first, then retries by retry_count, each by age.
CREATE INDEX task_live_ready ON task_live (queue, priority, retry_count, id) WHERE state = 1;
CREATE INDEX task_live_due ON task_live (due_at) WHERE due_at IS NOT NULL;

-- reason: 0 none, 1 rejected, 2 retries_exhausted, 3 timeout, 4 unknown, 5 expired, 6 cancelled.
CREATE TABLE task_done (
    id          uuid PRIMARY KEY,
    status      smallint NOT NULL CHECK (status IN (2, 3)),
    reason      smallint NOT NULL CHECK (reason BETWEEN 0 AND 6),
    retry_count smallint NOT NULL,
    ended       smallint NOT NULL,
    claim_id    bigint,
    app_id      varchar(50),
    reported_at timestamptz NOT NULL DEFAULT now(),
    sent_at     timestamptz,
    result      varchar(500),
    error_code  varchar(50),
    CHECK ((status = 2) = (reason = 0))
);
CREATE INDEX task_done_failed ON task_done (id) WHERE status = 3;
CREATE INDEX task_done_reported ON task_done USING brin (reported_at) WITH (pages_per_range = 32);

-- What a closed day (UTC) brought, so that statistics never count the history.
CREATE TABLE task_totals (
    day       date PRIMARY KEY,
    succeeded bigint NOT NULL,
    failed    bigint NOT NULL
);

-- Seed 003: the unique index decides. key and fingerprint are the first 128 bits of a SHA-256.
CREATE TABLE submission_keys (
    key         uuid PRIMARY KEY,
    fingerprint uuid NOT NULL,
    id          uuid NOT NULL
);

-- The seed's table, read-only. task_id is of type uuid: a cast to text would keep look-ups off the index.
CREATE VIEW sms_tasks AS
SELECT t.seq AS id,
       t.id AS task_id,
       t.phone_number,
       t.content,
       CASE WHEN d.id IS NOT NULL THEN d.status::integer WHEN l.state >= 2 THEN 1 ELSE 0 END AS status,
       t.source,
       COALESCE(d.retry_count, l.retry_count)::integer AS retry_count,
       CASE WHEN l.state = 2 OR l.ended IN (1, 2) AND l.state = 3 THEN l.app_id WHEN d.reason IN (0, 1) THEN d.app_id END AS processing_app_id,
       COALESCE(d.result, l.result) AS result,
       t.created_at,
       COALESCE(d.reported_at, l.updated_at) AS updated_at,
       d.sent_at,
       d.reported_at
FROM tasks t
LEFT JOIN task_live l ON l.id = t.id
LEFT JOIN task_done d ON d.id = t.id;
