-- Events of tasks and messages, the webhooks that receive them, and dead letters.

-- A row is inserted in the transaction of the change that its events report. If the events are of tasks, this transaction has locked the
-- tasks. So of two events of one task, the later is in the row with the greater id.
CREATE TABLE event_outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text NOT NULL,
    reason     smallint NOT NULL DEFAULT 0,
    ids        uuid[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    stream     text COLLATE "C" NOT NULL GENERATED ALWAYS AS (CASE WHEN starts_with(kind, 'message.') THEN 'USERS' ELSE 'EVENTS' END) STORED,
    next_at    timestamptz NOT NULL DEFAULT '-infinity',
    caller_id  bigint NOT NULL DEFAULT 0,
    events     integer NOT NULL GENERATED ALWAYS AS (cardinality(ids)) STORED
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
-- A relay takes an equal share of the rows of each caller.
CREATE INDEX event_outbox_due ON event_outbox (stream, caller_id, next_at, id);
COMMENT ON TABLE event_outbox IS 'Events to publish. A row has one kind of events of one transaction and caller, as the ids of the tasks, messages, endpoints or alerts. It is deleted when the stream has stored all its events.';
COMMENT ON COLUMN event_outbox.kind IS 'task.<state>, webhook.disabled, message.saved, message.rejected, alert.raised, alert.cleared.';
COMMENT ON COLUMN event_outbox.reason IS 'Of task.failed: as in task_done.';
COMMENT ON COLUMN event_outbox.next_at IS 'Not published before this time. It is in the future only if the last try failed for these events alone, not for the whole stream.';
COMMENT ON COLUMN event_outbox.caller_id IS 'Of task.<state>: the caller of the tasks, 0 for the built-in admin. 0 for all other kinds.';
COMMENT ON COLUMN event_outbox.events IS 'The number of ids.';

CREATE TABLE dead_letters (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    function   text NOT NULL,
    event_id   text NOT NULL,
    event_type text NOT NULL,
    event      text NOT NULL,
    reason     text NOT NULL,
    attempts   integer NOT NULL,
    dead       boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (function, event_id)
);
CREATE INDEX dead_letters_survived ON dead_letters (created_at, id) WHERE NOT dead;
COMMENT ON TABLE dead_letters IS 'Events that a function permanently rejects, for an operator to handle. If dead is false, the event is not rejected: the row only counts how often the function panicked over it (attempts).';
COMMENT ON COLUMN dead_letters.event_type IS 'The type of the CloudEvent.';
COMMENT ON COLUMN dead_letters.reason IS 'Why it was rejected, as text for operators.';

-- registered_caller is the only foreign key of the tables of this file. It costs almost nothing, because endpoints are few and seldom
-- created. shared/store/doc.go says why there are no others.
CREATE TABLE webhook_endpoints (
    id                uuid PRIMARY KEY,
    caller_id         bigint NOT NULL,
    url               text,
    format            varchar(20) NOT NULL DEFAULT 'cloudevents',
    description       varchar(200),
    events            text[] NOT NULL DEFAULT '{}',
    enabled           boolean NOT NULL DEFAULT true,
    disabled_reason   text CHECK (disabled_reason IN ('gone', 'failing', 'by_hand')),
    disabled_at       timestamptz,
    failing_since     timestamptz,
    secret            text,
    old_secret        text,
    old_secret_until  timestamptz,
    created_at        timestamptz NOT NULL DEFAULT now(),
    rotated_at        timestamptz,
    registered_caller bigint GENERATED ALWAYS AS (nullif(caller_id, 0)) STORED REFERENCES callers (id),
    CHECK (enabled = (disabled_reason IS NULL) AND enabled = (disabled_at IS NULL)),
    CHECK (url IS NOT NULL OR enabled),
    CHECK (secret LIKE 'enc2.%' AND old_secret LIKE 'enc2.%'),
    -- A robot can receive only some kinds of events, so its row must name the kinds.
    CONSTRAINT webhook_endpoints_format CHECK (format IN ('cloudevents', 'slack', 'dingtalk', 'wecom', 'feishu')
        AND (format = 'cloudevents' OR events <> '{}' AND events <@ ARRAY['webhook.disabled', 'alert.raised', 'alert.cleared'])),
    CONSTRAINT webhook_endpoints_secret
        CHECK (CASE WHEN format = 'cloudevents' THEN secret IS NOT NULL ELSE secret IS NULL OR format IN ('dingtalk', 'feishu') END)
);
CREATE UNIQUE INDEX webhook_endpoints_signing ON webhook_endpoints (caller_id) WHERE url IS NULL;
CREATE INDEX webhook_endpoints_caller ON webhook_endpoints (caller_id, id) WHERE url IS NOT NULL;
COMMENT ON TABLE webhook_endpoints IS 'Where the events of a caller are posted. The row without url of a caller stands for the callback URLs of its tasks; the secret of this row signs these callbacks and the caller''s messages to URLs.';
COMMENT ON COLUMN webhook_endpoints.format IS 'The format of the POST: cloudevents, or the text message of a robot of slack, dingtalk, wecom or feishu.';
COMMENT ON COLUMN webhook_endpoints.events IS 'The kinds of events that are posted; empty: all.';
COMMENT ON COLUMN webhook_endpoints.disabled_reason IS 'gone (it responded 410), failing (only failures for five days), by_hand.';
COMMENT ON COLUMN webhook_endpoints.failing_since IS 'The first failure since the last success.';
COMMENT ON COLUMN webhook_endpoints.secret IS 'Encrypted and bound to its row: nobody without the encryption key can store another secret here. The secret of a robot was created by the robot; null: it requires no signature.';
COMMENT ON COLUMN webhook_endpoints.registered_caller IS 'caller_id, null for caller 0, which has no row: a caller with endpoints cannot be removed.';

CREATE TABLE webhook_events (
    id          text PRIMARY KEY,
    payload     text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX webhook_events_recorded ON webhook_events (recorded_at, id);
COMMENT ON TABLE webhook_events IS 'Each event that webhook_deliveries refers to, once. Deleted after all deliveries that refer to it.';
COMMENT ON COLUMN webhook_events.payload IS 'The body of each POST.';
COMMENT ON COLUMN webhook_events.recorded_at IS 'When it was last recorded, with a precision of half a day.';

CREATE TABLE webhook_deliveries (
    id          uuid NOT NULL,
    event_id    text NOT NULL,
    endpoint_id uuid NOT NULL,
    caller_id   bigint NOT NULL,
    event_type  text NOT NULL,
    subject     uuid NOT NULL,
    host        text NOT NULL DEFAULT '',
    url         text NOT NULL,
    state       smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 2),
    attempts    smallint NOT NULL DEFAULT 0,
    claims      integer NOT NULL DEFAULT 0,
    tries       jsonb NOT NULL DEFAULT '[]',
    tried       integer NOT NULL DEFAULT 0,
    next_at     timestamptz DEFAULT now(),
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (event_id, endpoint_id),
    CHECK ((state = 0) = (next_at IS NOT NULL) AND (state = 0) = (finished_at IS NULL))
);
CREATE UNIQUE INDEX webhook_deliveries_id ON webhook_deliveries (id);
-- _due finds the earliest deliveries of an endpoint. _hosts is ordered by hash, to find some hosts of callback URLs at random.
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (caller_id, endpoint_id, next_at) WHERE state = 0;
CREATE INDEX webhook_deliveries_hosts ON webhook_deliveries (endpoint_id, hashtextextended(host, 0), host, next_at) WHERE state = 0 AND host <> '';
CREATE INDEX webhook_deliveries_caller ON webhook_deliveries (caller_id, id);
CREATE INDEX webhook_deliveries_endpoint ON webhook_deliveries (endpoint_id, id);
CREATE INDEX webhook_deliveries_subject ON webhook_deliveries (subject);
CREATE INDEX webhook_deliveries_finished ON webhook_deliveries (finished_at, id) WHERE state <> 0;
-- To resend the deliveries that failed since a time. Failed deliveries are few.
CREATE INDEX webhook_deliveries_failed ON webhook_deliveries (finished_at, caller_id, endpoint_id) WHERE state = 2;
COMMENT ON TABLE webhook_deliveries IS 'One row for each event and endpoint, with its tries.';
COMMENT ON COLUMN webhook_deliveries.event_type IS 'The type of the CloudEvent, such as sendonce.task.failed.v1.';
COMMENT ON COLUMN webhook_deliveries.host IS 'The host of a callback URL, so that a slow host delays only its own deliveries. Empty for an endpoint.';
COMMENT ON COLUMN webhook_deliveries.state IS '0 pending, 1 delivered, 2 failed.';
COMMENT ON COLUMN webhook_deliveries.attempts IS 'Failures in this schedule; a resend starts a new schedule.';
COMMENT ON COLUMN webhook_deliveries.claims IS 'The fencing token: each try and each resend increments it.';
COMMENT ON COLUMN webhook_deliveries.tried IS 'The number of tries; the column tries has the last 50.';
