-- Reliable messages (seed 002), split as tasks are: a body that never changes,
-- one narrow row while the message is on its way, one row at its end.

-- id: UUIDv5 of caller, sender and client_msg_id, so that the primary key is the only judge of a repeat.
-- call_id: UUIDv7 of the call that saved it; tells a repeat from the very call whose answer was lost.
-- kind: 0 subject, 1 URL, 2 user; destination is its name. exchange_name and routing_key: where these were given.
-- data: JSON as it was sent, which is what is delivered; jsonb would change it.
-- confirm: the message ends with expected_receipts confirmations and not with its send.
CREATE TABLE messages (
    id                uuid PRIMARY KEY,
    call_id           uuid NOT NULL,
    caller_id         bigint NOT NULL,
    sender            text NOT NULL,
    client_msg_id     varchar(255) NOT NULL,
    fingerprint       uuid NOT NULL,
    kind              smallint NOT NULL CHECK (kind BETWEEN 0 AND 2),
    destination       text NOT NULL,
    exchange_name     text,
    routing_key       text,
    type              varchar(255) NOT NULL,
    data              text NOT NULL,
    sent_at           timestamptz,
    confirm           boolean NOT NULL,
    max_sends         smallint NOT NULL CHECK (max_sends BETWEEN 1 AND 20),
    expected_receipts smallint NOT NULL CHECK (expected_receipts BETWEEN 1 AND 100),
    created_at        timestamptz NOT NULL DEFAULT now(),
    CHECK (confirm OR expected_receipts = 1)
);

-- status: 0 sending, 1 sent. remaining_sends and send_no count within the epoch, which a redrive begins anew.
-- next_at: when the relay must send it (again); null when no send is left.
CREATE TABLE message_live (
    id              uuid PRIMARY KEY,
    status          smallint NOT NULL DEFAULT 0 CHECK (status IN (0, 1)),
    remaining_sends smallint NOT NULL CHECK (remaining_sends >= 0),
    send_no         smallint NOT NULL DEFAULT 0,
    epoch           integer NOT NULL DEFAULT 1,
    next_at         timestamptz DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    last_error      varchar(500),
    CHECK ((remaining_sends = 0) = (next_at IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, vacuum_truncate = off);
CREATE INDEX message_live_due ON message_live (next_at, id) WHERE remaining_sends > 0;
CREATE INDEX message_live_stuck ON message_live (status, id) WHERE remaining_sends = 0;

-- status: 1 sent (no confirmation was wanted), 2 received; of an abandoned message, how far it came.
-- finished_by: the consumer that confirmed last, or the operator who abandoned it.
CREATE TABLE message_done (
    id              uuid PRIMARY KEY,
    status          smallint NOT NULL CHECK (status BETWEEN 0 AND 2),
    abandoned       boolean NOT NULL,
    remaining_sends smallint NOT NULL,
    send_no         smallint NOT NULL,
    epoch           integer NOT NULL,
    finished_at     timestamptz NOT NULL DEFAULT now(),
    finished_by     text,
    last_error      varchar(500),
    CHECK (CASE WHEN abandoned THEN status < 2 ELSE status > 0 END)
);

-- Who confirmed, once each; send_no is that of the newest send then.
CREATE TABLE message_receipts (
    message_id   uuid NOT NULL,
    consumer     text NOT NULL,
    confirmed_at timestamptz NOT NULL DEFAULT now(),
    send_no      smallint NOT NULL,
    PRIMARY KEY (message_id, consumer)
);

-- The seed's table, read-only. remaining_sends is null where nothing more is sent and no confirmation came:
-- so status <> 2 AND remaining_sends = 0 finds the stuck messages, as in the seed, and no others.
CREATE VIEW reliable_messages AS
SELECT m.id,
       m.exchange_name,
       COALESCE(m.routing_key, m.destination) AS routing_key,
       m.data AS content,
       CASE WHEN l.id IS NOT NULL THEN l.remaining_sends WHEN d.status = 2 THEN d.remaining_sends END::integer AS remaining_sends,
       COALESCE(d.status, l.status)::integer AS status,
       m.created_at,
       COALESCE(d.finished_at, l.updated_at) AS updated_at
FROM messages m
LEFT JOIN message_live l ON l.id = m.id
LEFT JOIN message_done d ON d.id = m.id;
