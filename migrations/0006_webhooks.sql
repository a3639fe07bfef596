-- Task events, the webhooks that tell them, and what no retry will cure.

-- One row per flush and kind of change, in the commit of the change; deleted once a stream has all its events.
-- id orders the events of one task: it is taken while the task is locked. reason: that of task_done.
CREATE TABLE event_outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text NOT NULL,
    reason     smallint NOT NULL DEFAULT 0,
    ids        uuid[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- url: null in the one row that holds a caller's signing secret, for its callback URLs and its messages to URLs.
-- events: the kinds that it is told; none = all. failing_since: the first failure since the last success.
CREATE TABLE webhook_endpoints (
    id               uuid PRIMARY KEY,
    caller_id        bigint NOT NULL,
    url              text,
    description      varchar(200),
    events           text[] NOT NULL DEFAULT '{}',
    enabled          boolean NOT NULL DEFAULT true,
    disabled_reason  text CHECK (disabled_reason IN ('gone', 'failing', 'by_hand')),
    disabled_at      timestamptz,
    failing_since    timestamptz,
    secret           text NOT NULL,
    old_secret       text,
    old_secret_until timestamptz,
    created_at       timestamptz NOT NULL DEFAULT now(),
    rotated_at       timestamptz,
    CHECK (enabled = (disabled_reason IS NULL) AND enabled = (disabled_at IS NULL)),
    CHECK (url IS NOT NULL OR enabled)
);
CREATE UNIQUE INDEX webhook_endpoints_signing ON webhook_endpoints (caller_id) WHERE url IS NULL;
CREATE INDEX webhook_endpoints_caller ON webhook_endpoints (caller_id, id) WHERE url IS NOT NULL;

-- Who is told of which event, and each try. state: 0 pending, 1 delivered, 2 failed. attempts counts the failures of
-- the schedule, which a resend begins anew; claims is the fence: one more with each try begun and each resend.
-- lane: the host of a callback URL, "" for an endpoint: what one receiver may keep waiting is its lane only.
CREATE TABLE webhook_deliveries (
    id          uuid NOT NULL,
    event_id    text NOT NULL,
    endpoint_id uuid NOT NULL,
    caller_id   bigint NOT NULL,
    event_type  text NOT NULL,
    subject     uuid NOT NULL,
    lane        text NOT NULL DEFAULT '',
    url         text NOT NULL,
    payload     text NOT NULL,
    state       smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 2),
    attempts    smallint NOT NULL DEFAULT 0,
    claims      integer NOT NULL DEFAULT 0,
    tries       jsonb NOT NULL DEFAULT '[]',
    next_at     timestamptz DEFAULT now(),
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (event_id, endpoint_id),
    CHECK ((state = 0) = (next_at IS NOT NULL) AND (state = 0) = (finished_at IS NULL))
);
CREATE UNIQUE INDEX webhook_deliveries_id ON webhook_deliveries (id);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint_id, lane, next_at) WHERE state = 0;
CREATE INDEX webhook_deliveries_caller ON webhook_deliveries (caller_id, id);
CREATE INDEX webhook_deliveries_endpoint ON webhook_deliveries (endpoint_id, id);
CREATE INDEX webhook_deliveries_subject ON webhook_deliveries (subject);

-- What a function will never take, whatever it is asked again. dead: false while the function may yet take it, and attempts
-- counts how often it panicked over it.
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

-- kind: that of messages, as URLs are served by deliver and everything else by relay. lane: of a URL, its caller and host.
ALTER TABLE message_live ADD COLUMN kind smallint NOT NULL DEFAULT 0 CHECK (kind BETWEEN 0 AND 2), ADD COLUMN lane text;
UPDATE message_live l SET kind = m.kind, lane = CASE WHEN m.kind = 1 THEN m.caller_id || ' ' || coalesce(substring(m.destination FROM '://([^/?#]+)'), '') END
FROM messages m WHERE m.id = l.id AND m.kind <> 0;
ALTER TABLE message_live ALTER COLUMN kind DROP DEFAULT;
DROP INDEX message_live_due;
CREATE INDEX message_live_due ON message_live (next_at, id) WHERE remaining_sends > 0 AND kind <> 1;
CREATE INDEX message_live_posts ON message_live (lane, next_at) WHERE remaining_sends > 0 AND kind = 1;

-- Who is to be told, at hand when the row is locked: callback says that the task has a URL of its own.
ALTER TABLE task_live ADD COLUMN caller_id bigint NOT NULL DEFAULT 0, ADD COLUMN callback boolean NOT NULL DEFAULT false;
UPDATE task_live l SET caller_id = t.caller_id, callback = t.callback_url IS NOT NULL FROM tasks t WHERE t.id = l.id;
