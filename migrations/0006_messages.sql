-- Reliable messages, split like tasks: a body that is written once, one narrow row until the message is final, one row with its result.

-- id: UUIDv5 of caller, sender and client_msg_id, so that the primary key alone detects a repeat.
-- call_id: UUIDv7 of the call that saved the message. A call that repeats its own commit, because the result was lost, finds its own
-- call_id; a repeat by the client finds another call_id.
-- data: JSON, delivered byte for byte as it was submitted; the type jsonb would change the bytes.
-- accept_seq, accepted_at, producer: if a stream accepted the message before it was saved, its sequence number in the stream, the time, and
-- the process that accepted the message; the time is by the clock of that process. Otherwise null.
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
    accept_seq        bigint,
    accepted_at       timestamptz,
    producer          text,
    confirm_token     bytea,
    CHECK (confirm OR expected_receipts = 1)
);
-- One direction of a conversation, in its order: a page merges both directions. A skip scan by sender finds all who wrote to a user.
CREATE INDEX messages_between ON messages (destination, sender, created_at, id) WHERE kind = 2;
COMMENT ON TABLE messages IS 'The body of each reliable message. Written once; only confirm_token is set later.';
COMMENT ON COLUMN messages.kind IS 'What destination is: 0 a subject, 1 a URL, 2 a user.';
COMMENT ON COLUMN messages.confirm IS 'True: the message is final after expected_receipts confirmations; false: after its delivery.';
COMMENT ON COLUMN messages.max_sends IS 'The most sends in one epoch, 1 to 20. A redrive begins a new epoch.';
COMMENT ON COLUMN messages.expected_receipts IS 'How many consumers must confirm, 1 to 100.';
COMMENT ON COLUMN messages.confirm_token IS 'Secret with 244 random bits, for a message to a URL: anyone who has it may confirm the message. Created before the first send. Null before that, for all other kinds, and unless confirm.';

CREATE TABLE message_live (
    id              uuid PRIMARY KEY,
    status          smallint NOT NULL DEFAULT 0 CHECK (status IN (0, 1)),
    remaining_sends smallint NOT NULL CHECK (remaining_sends >= 0),
    send_no         smallint NOT NULL DEFAULT 0,
    epoch           integer NOT NULL DEFAULT 1,
    next_at         timestamptz DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    last_error      varchar(500),
    kind            smallint NOT NULL CHECK (kind BETWEEN 0 AND 2),
    destination_key text,
    delivered_at    timestamptz,
    stream          text COLLATE "C" NOT NULL DEFAULT '',
    caller_id       bigint NOT NULL DEFAULT 0,
    bytes           integer NOT NULL DEFAULT 0,
    CHECK ((remaining_sends = 0) = (next_at IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, vacuum_truncate = off);
-- Each row is in exactly one of the indexes _due, _posts and _stuck_caller. These begin with caller_id, to count the waiting messages of a
-- caller, and because relays and claims take an equal share of each caller. _hosts is ordered by hash, to find some hosts at random.
CREATE INDEX message_live_due ON message_live (caller_id, stream, next_at, id) WHERE remaining_sends > 0 AND kind <> 1;
CREATE INDEX message_live_posts ON message_live (caller_id, next_at) WHERE remaining_sends > 0 AND kind = 1;
CREATE INDEX message_live_hosts ON message_live (caller_id, hashtextextended(destination_key, 0), destination_key, next_at) WHERE remaining_sends > 0 AND kind = 1;
CREATE INDEX message_live_stuck ON message_live (status, id) WHERE remaining_sends = 0;
CREATE INDEX message_live_stuck_caller ON message_live (caller_id) WHERE remaining_sends = 0;
COMMENT ON TABLE message_live IS 'One narrow row for each message that is not final: the one row to lock.';
COMMENT ON COLUMN message_live.status IS '0 sending, 1 sent.';
COMMENT ON COLUMN message_live.remaining_sends IS 'Sends left in this epoch; with 0 the message is stuck.';
COMMENT ON COLUMN message_live.send_no IS 'Sends used in this epoch. A redrive begins a new epoch.';
COMMENT ON COLUMN message_live.next_at IS 'When it must be sent, or sent again; null when no send is left.';
COMMENT ON COLUMN message_live.kind IS 'As in messages: 0 a subject, 1 a URL, 2 a user. Deliver sends messages to URLs, relay all others.';
COMMENT ON COLUMN message_live.destination_key IS 'Of a message to a URL: its caller and the host.';
COMMENT ON COLUMN message_live.delivered_at IS 'When a stream, or the receiver at a URL, first accepted it.';
COMMENT ON COLUMN message_live.stream IS 'The stream that stores the message, derived from its destination only: MESSAGES, USERS, or other-<n>, where n is derived from the first token of the subject. Empty: a message to a URL.';
COMMENT ON COLUMN message_live.caller_id IS 'As in messages.';
COMMENT ON COLUMN message_live.bytes IS 'The length of messages.data.';

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
    delivered_at    timestamptz,
    CHECK (CASE WHEN abandoned THEN status < 2 ELSE status > 0 END)
);
CREATE INDEX message_done_finished ON message_done (finished_at, id);
COMMENT ON TABLE message_done IS 'The result of each final message.';
COMMENT ON COLUMN message_done.status IS '1 sent (no confirmation was requested), 2 received; of an abandoned message its last status: 0 sending, 1 sent.';
COMMENT ON COLUMN message_done.remaining_sends IS 'Sends that were left in the last epoch.';
COMMENT ON COLUMN message_done.send_no IS 'Sends used in the last epoch.';
COMMENT ON COLUMN message_done.finished_by IS 'The consumer whose confirmation was the last, or the operator who abandoned the message.';

CREATE TABLE message_receipts (
    message_id   uuid NOT NULL,
    consumer     text NOT NULL,
    confirmed_at timestamptz NOT NULL DEFAULT now(),
    send_no      smallint NOT NULL,
    PRIMARY KEY (message_id, consumer)
);
COMMENT ON TABLE message_receipts IS 'Which consumer confirmed which message, once each.';
COMMENT ON COLUMN message_receipts.send_no IS 'The newest send at the time of the confirmation.';

CREATE TABLE archived_messages (
    id                uuid PRIMARY KEY,
    call_id           uuid NOT NULL,
    caller_id         bigint NOT NULL,
    sender            text NOT NULL,
    client_msg_id     varchar(255) NOT NULL,
    fingerprint       uuid NOT NULL,
    kind              smallint NOT NULL,
    destination       text NOT NULL,
    exchange_name     text,
    routing_key       text,
    type              varchar(255) NOT NULL,
    data              text NOT NULL,
    sent_at           timestamptz,
    confirm           boolean NOT NULL,
    max_sends         smallint NOT NULL,
    expected_receipts smallint NOT NULL,
    created_at        timestamptz NOT NULL,
    accept_seq        bigint,
    accepted_at       timestamptz,
    producer          text,
    confirm_token     bytea,
    status            smallint NOT NULL CHECK (status BETWEEN 0 AND 2),
    abandoned         boolean NOT NULL,
    remaining_sends   smallint NOT NULL,
    send_no           smallint NOT NULL,
    epoch             integer NOT NULL,
    finished_at       timestamptz NOT NULL,
    finished_by       text,
    last_error        varchar(500),
    delivered_at      timestamptz,
    receipts          jsonb NOT NULL,
    archived_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX archived_messages_between ON archived_messages (destination, sender, created_at, id) WHERE kind = 2;
COMMENT ON TABLE archived_messages IS 'Final messages older than RETENTION_DAYS: body, result and receipts in one row. A repeat of their submission is still recognised.';
COMMENT ON COLUMN archived_messages.kind IS 'As in messages: 0 a subject, 1 a URL, 2 a user.';
COMMENT ON COLUMN archived_messages.max_sends IS 'As in messages.';
COMMENT ON COLUMN archived_messages.expected_receipts IS 'As in messages.';
COMMENT ON COLUMN archived_messages.confirm_token IS 'As in messages.';
COMMENT ON COLUMN archived_messages.status IS 'As in message_done: 1 sent, 2 received; of an abandoned message its last status: 0 sending, 1 sent.';
COMMENT ON COLUMN archived_messages.remaining_sends IS 'As in message_done.';
COMMENT ON COLUMN archived_messages.send_no IS 'As in message_done.';
COMMENT ON COLUMN archived_messages.receipts IS 'The rows of message_receipts: [{"consumer", "confirmedAt", "sendNo"}].';

CREATE TABLE message_cursors (
    reader     text NOT NULL,
    peer       text NOT NULL,
    created_at timestamptz NOT NULL,
    id         uuid NOT NULL,
    read_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (reader, peer)
);
COMMENT ON TABLE message_cursors IS 'How far a user has read a conversation: the newest message read (created_at, id). It only moves forward.';

CREATE TABLE accepted_messages (
    id            uuid PRIMARY KEY,
    accept_seq    bigint,
    saved_at      timestamptz DEFAULT now(),
    sender        text,
    client_msg_id text,
    delivered_at  timestamptz,
    purged_seq    bigint
);
CREATE INDEX accepted_messages_place ON accepted_messages (accept_seq);
COMMENT ON TABLE accepted_messages IS 'Messages of the two-phase acknowledgement: those that are saved or rejected and still in the stream, so that save recognises them if the stream delivers them again; those that were delivered in the last 30 days and are not saved; and those that the database can never store, for at least a day after their rejection.';
COMMENT ON COLUMN accepted_messages.saved_at IS 'When it was saved or rejected. Null: it was delivered, and is neither saved nor rejected.';
COMMENT ON COLUMN accepted_messages.sender IS 'Of a message that the database can never store: the sender, to whom the acknowledgement goes. Null for others.';
COMMENT ON COLUMN accepted_messages.delivered_at IS 'When it was delivered to its receiver before it was saved.';
COMMENT ON COLUMN accepted_messages.purged_seq IS 'Of a row with a sender, after its message was removed from the stream: the former accept_seq, for the acknowledgement.';

-- stream_created: identifies the stream; if a stream is created again, its sequence numbers start again.
-- looked_seq, looked_taken, looked_at: the last sequence number of the stream, the last consumed sequence number, and the time, all at the
-- last scan. With them, the next scan detects that nothing was consumed meanwhile.
CREATE TABLE accepted_checked (
    one            boolean PRIMARY KEY DEFAULT true CHECK (one),
    accept_seq     bigint NOT NULL,
    stream_created timestamptz NOT NULL,
    looked_seq     bigint NOT NULL DEFAULT 0,
    looked_taken   bigint NOT NULL DEFAULT 0,
    looked_at      timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE accepted_checked IS 'How far the stream was compared with the saved messages: none at or before accept_seq is missing. One row.';

CREATE TABLE inbox_trims (
    user_name  text PRIMARY KEY,
    seq        bigint NOT NULL,
    trimmed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE inbox_trims IS 'Users whose inbox in the stream USERS was trimmed to free space. Rows are kept for as long as the stream keeps messages.';
COMMENT ON COLUMN inbox_trims.user_name IS 'The user.';
COMMENT ON COLUMN inbox_trims.seq IS 'The last sequence number of the stream at which a message to the user was removed.';
COMMENT ON COLUMN inbox_trims.trimmed_at IS 'When that was last recorded.';

CREATE TABLE inbox_unsaved (
    user_name text COLLATE "C",
    sender    text COLLATE "C",
    since     timestamptz,
    messages  bigint NOT NULL,
    PRIMARY KEY (user_name, sender, since)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE inbox_unsaved IS 'How many accepted messages from a sender to a user were not saved in the minute that begins at since, because they were rejected or are repeats of saved messages. They may still be in the inbox of the user. Rows are deleted after an hour.';

CREATE TABLE stream_usage (
    since     timestamptz,
    stream    text COLLATE "C",
    caller_id bigint,
    bytes     bigint NOT NULL,
    PRIMARY KEY (since, stream, caller_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE stream_usage IS 'How many bytes a stream stored for each caller in the minute that begins at since; rows are deleted after an hour.';
COMMENT ON COLUMN stream_usage.stream IS 'MESSAGES, USERS, or ACCEPTED, even if TWO_PHASE_STREAM is another name.';
COMMENT ON COLUMN stream_usage.bytes IS 'The bytes of the data, plus the overhead of the stream for each message.';

CREATE TABLE stream_pauses (
    stream   text COLLATE "C" PRIMARY KEY,
    until    timestamptz NOT NULL,
    failures integer NOT NULL,
    reason   text NOT NULL,
    since    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE stream_pauses IS 'Streams that accepted nothing when they were last tried. Their messages and events wait until the time in until. Then a few are tried; if the stream stores them, the row is deleted.';
COMMENT ON COLUMN stream_pauses.stream IS 'As in message_live and event_outbox.';
COMMENT ON COLUMN stream_pauses.failures IS 'Consecutive failed tries; 0: the broker itself was unreachable, and the stream is not paused.';
COMMENT ON COLUMN stream_pauses.reason IS 'The response of the broker, as text for operators.';

-- remaining_sends is null for a final message that was not received. So status <> 2 AND remaining_sends = 0 finds only the stuck messages.
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
COMMENT ON VIEW reliable_messages IS 'The messages in the form of the original table of reliable messages, read-only. For reading single messages; counting is slow.';
COMMENT ON COLUMN reliable_messages.remaining_sends IS 'Sends left. Null: the message ended without a confirmation.';
COMMENT ON COLUMN reliable_messages.status IS '0 sending, 1 sent, 2 received.';
