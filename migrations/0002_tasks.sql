-- Each task has a body, which is written once (tasks). While the task is not final, it has one narrow row in task_live; then it has one
-- row with its result in task_done.

-- A process reserves claim ids in blocks of 1000, so that it has an id before it claims. Claim ids are unique, but not in the order of the
-- claims.
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
    metadata     json,
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX idx_sms_tasks_phone ON tasks (phone_number, id);
COMMENT ON TABLE tasks IS 'The body of each task of the main tables: an SMS, or one send of a subscribe message. Written once, never changed.';
COMMENT ON COLUMN tasks.seq IS 'A number in roughly the order of submission; the id in the view sms_tasks.';
COMMENT ON COLUMN tasks.metadata IS 'The JSON text of the submission. The type jsonb would change it: 1e300 would become 301 digits.';
COMMENT ON COLUMN tasks.caller_id IS 'The caller that submitted the task: callers.id, or 0 for the built-in admin, which has no row.';
COMMENT ON COLUMN tasks.priority IS '0 to 9, 0 first; 5 by default.';
COMMENT ON COLUMN tasks.max_retries IS 'How many retries may follow the first try, 0 to 10.';
COMMENT ON COLUMN tasks.on_unknown IS 'What to do when it is unknown whether the message was sent: 0 resend, 1 hold, 2 fail.';

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
    caller_id     bigint NOT NULL DEFAULT 0,
    callback      boolean NOT NULL DEFAULT false,
    claimed_by    bigint,
    CHECK (state <> 0 OR due_at IS NOT NULL),
    CHECK (state <> 2 OR (due_at IS NOT NULL AND claim_id IS NOT NULL AND app_id IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, vacuum_truncate = off);
-- The order of a claim without a sort: by priority, then new tasks before retries (by retry_count), then by age.
CREATE INDEX task_live_ready ON task_live (queue, priority, retry_count, id) WHERE state = 1;
-- Sweep handles a share of the due tasks of each queue. task_live_due_queues is ordered by hash, so that sweep can start at a random queue.
CREATE INDEX task_live_due ON task_live (due_at) WHERE state <> 2 AND due_at IS NOT NULL;
CREATE INDEX task_live_due_queues ON task_live (hashtextextended(queue, 0), queue, due_at) WHERE state <> 2 AND due_at IS NOT NULL;
CREATE INDEX task_live_leases ON task_live (due_at) WHERE state = 2;
-- These two indexes are for the tasks of one queue that cannot be claimed. Pending tasks, the majority, are in task_live_ready.
CREATE INDEX task_live_scheduled ON task_live (queue) WHERE state = 0;
CREATE INDEX task_live_held ON task_live (queue) WHERE state = 3;
-- There is no index by caller_id: it would make each submission, claim and report slower.
COMMENT ON TABLE task_live IS 'One narrow row for each task that is not final: the one row to lock.';
COMMENT ON COLUMN task_live.state IS '0 scheduled, 1 pending, 2 processing, 3 held.';
COMMENT ON COLUMN task_live.priority IS 'As in tasks.';
COMMENT ON COLUMN task_live.retry_count IS 'Retries started so far, 0 to max_retries.';
COMMENT ON COLUMN task_live.max_retries IS 'As in tasks.';
COMMENT ON COLUMN task_live.on_unknown IS 'As in tasks: 0 resend, 1 hold, 2 fail.';
COMMENT ON COLUMN task_live.ended IS 'How the newest claim (claim_id, app_id) ended: 0 not yet, or the task was never claimed; 1 failed, 2 unknown, 3 released, 4 timeout, 5 succeeded, 6 by an operator. A late success or an operator can change it later.';
COMMENT ON COLUMN task_live.due_at IS 'When sweep must handle the task: the send time, the time of a retry, the end of the lease, or the expiry.';
COMMENT ON COLUMN task_live.caller_id IS 'As in tasks.';
COMMENT ON COLUMN task_live.callback IS 'Whether tasks.callback_url is set.';
COMMENT ON COLUMN task_live.claimed_by IS 'The caller that made the newest claim: callers.id, 0 for the built-in admin, -1 for a function of the service itself.';

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
    subscribe   boolean NOT NULL DEFAULT false,
    claimed_by  bigint,
    CHECK ((status = 2) = (reason = 0))
);
CREATE INDEX task_done_failed ON task_done (id) WHERE status = 3;
-- For the results of a time span, such as the last minutes. Without autosummarize, queries would read all of the newest pages until a
-- vacuum.
CREATE INDEX task_done_reported ON task_done USING brin (reported_at) WITH (pages_per_range = 32, autosummarize = on);
COMMENT ON TABLE task_done IS 'The result of each final task of the main tables.';
COMMENT ON COLUMN task_done.status IS '2 succeeded, 3 failed.';
COMMENT ON COLUMN task_done.reason IS 'Why it failed: 0 none (it succeeded), 1 rejected, 2 retries_exhausted, 3 timeout, 4 unknown, 5 expired, 6 cancelled.';
COMMENT ON COLUMN task_done.retry_count IS 'Retries started in total.';
COMMENT ON COLUMN task_done.ended IS 'How the newest claim ended, as in task_live.';
COMMENT ON COLUMN task_done.subscribe IS 'The task was a send of a subscribe message (queues wechat and wechat.recorded), not an SMS. Statistics need not read the bodies.';
COMMENT ON COLUMN task_done.claimed_by IS 'The caller that made the newest claim, as in task_live; null: it was never claimed.';

CREATE TABLE archived_tasks (
    id           uuid PRIMARY KEY,
    seq          bigint NOT NULL,
    caller_id    bigint NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    priority     smallint NOT NULL,
    max_retries  smallint NOT NULL,
    on_unknown   smallint NOT NULL,
    phone_number varchar(20) NOT NULL,
    content      varchar(200) NOT NULL,
    source       varchar(50),
    send_at      timestamptz,
    expires_at   timestamptz,
    callback_url text,
    metadata     json,
    created_at   timestamptz NOT NULL,
    status       smallint NOT NULL,
    reason       smallint NOT NULL,
    retry_count  smallint NOT NULL,
    ended        smallint NOT NULL,
    claim_id     bigint,
    app_id       varchar(50),
    reported_at  timestamptz NOT NULL,
    sent_at      timestamptz,
    result       varchar(500),
    error_code   varchar(50),
    claimed_by   bigint,
    archived_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE archived_tasks IS 'Final tasks older than RETENTION_DAYS, body and result in one row. Found by id only.';
COMMENT ON COLUMN archived_tasks.priority IS 'As in tasks.';
COMMENT ON COLUMN archived_tasks.max_retries IS 'As in tasks.';
COMMENT ON COLUMN archived_tasks.on_unknown IS 'As in tasks: 0 resend, 1 hold, 2 fail.';
COMMENT ON COLUMN archived_tasks.status IS 'As in task_done: 2 succeeded, 3 failed.';
COMMENT ON COLUMN archived_tasks.reason IS 'As in task_done: 0 none, 1 rejected, 2 retries_exhausted, 3 timeout, 4 unknown, 5 expired, 6 cancelled.';
COMMENT ON COLUMN archived_tasks.retry_count IS 'As in task_done.';
COMMENT ON COLUMN archived_tasks.ended IS 'As in task_done.';
COMMENT ON COLUMN archived_tasks.claimed_by IS 'As in task_done.';

CREATE TABLE submission_keys (
    key         uuid PRIMARY KEY,
    fingerprint uuid NOT NULL,
    id          uuid NOT NULL
);
COMMENT ON TABLE submission_keys IS 'Every idempotency key ever used: only the primary key decides whether a submission is a repeat. key and fingerprint are the first 128 bits of a SHA-256.';

CREATE TABLE task_totals (
    day                 date PRIMARY KEY,
    succeeded           bigint NOT NULL,
    failed              bigint NOT NULL,
    counted_to          timestamptz,
    subscribe_succeeded bigint NOT NULL,
    subscribe_failed    bigint NOT NULL
);
COMMENT ON TABLE task_totals IS 'Numbers of results by UTC day, so that statistics need not count old rows. At most one day is counted only in part.';
COMMENT ON COLUMN task_totals.succeeded IS 'SMS tasks that succeeded.';
COMMENT ON COLUMN task_totals.failed IS 'SMS tasks that failed.';
COMMENT ON COLUMN task_totals.counted_to IS 'Results before this time are counted, those of the rest of the day are not. NULL: the whole day is counted, and the day is closed.';
COMMENT ON COLUMN task_totals.subscribe_succeeded IS 'Sends of subscribe messages that succeeded.';
COMMENT ON COLUMN task_totals.subscribe_failed IS 'Sends of subscribe messages that failed.';

CREATE TABLE queue_pauses (
    queue      text COLLATE "C" PRIMARY KEY CHECK (octet_length(queue) BETWEEN 1 AND 63),
    until      timestamptz,
    reason     text NOT NULL,
    paused_by  text NOT NULL,
    by_hand    boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX queue_pauses_until ON queue_pauses (until) WHERE until IS NOT NULL;
COMMENT ON TABLE queue_pauses IS 'Queues whose tasks cannot be claimed before the time in until; NULL: until an operator resumes the queue. After this time, sweep or a claim deletes the row and wakes the waiting claims.';
COMMENT ON COLUMN queue_pauses.reason IS 'Text for operators.';

-- task_id has the type uuid: with a cast to text, look-ups could not use the index.
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
       d.reported_at,
       t.queue,
       CASE d.reason WHEN 1 THEN 'rejected' WHEN 2 THEN 'retries_exhausted' WHEN 3 THEN 'timeout' WHEN 4 THEN 'unknown'
                     WHEN 5 THEN 'expired' WHEN 6 THEN 'cancelled' END AS reason
FROM tasks t
LEFT JOIN task_live l ON l.id = t.id
LEFT JOIN task_done d ON d.id = t.id
WHERE t.queue NOT IN ('wechat', 'wechat.recorded');
COMMENT ON VIEW sms_tasks IS 'The SMS tasks of the main tables in the form of the original table, read-only, without the sends of subscribe messages. For reading single tasks; counting is slow.';
COMMENT ON COLUMN sms_tasks.status IS '0 PENDING, 1 PROCESSING, 2 SUCCESS, 3 FAILED.';
COMMENT ON COLUMN sms_tasks.reason IS 'Why it failed: the name of task_done.reason; null unless status is 3.';
