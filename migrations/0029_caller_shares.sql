-- What one caller has waiting must not keep the messages of another waiting, and must not fill a stream.

ALTER TABLE callers
    ADD COLUMN max_waiting_messages bigint CHECK (max_waiting_messages > 0),
    ADD COLUMN max_waiting_bytes bigint CHECK (max_waiting_bytes > 0);
COMMENT ON COLUMN callers.max_waiting_messages IS 'Messages of the caller that may be waiting: not delivered, or not confirmed. NULL: SENDONCE_CALLER_WAITING_MESSAGES decides.';
COMMENT ON COLUMN callers.max_waiting_bytes IS 'Bytes of data of these messages. NULL: SENDONCE_CALLER_WAITING_MB decides.';

-- Each row is in exactly one of the three indexes that begin with caller_id: what a caller has waiting is counted there,
-- and the relay takes an equal part of each caller's.
ALTER TABLE message_live ADD COLUMN caller_id bigint NOT NULL DEFAULT 0, ADD COLUMN bytes integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN message_live.caller_id IS 'As messages.caller_id.';
COMMENT ON COLUMN message_live.bytes IS 'Length of messages.data.';
UPDATE message_live l SET caller_id = m.caller_id, bytes = octet_length(m.data) FROM messages m WHERE m.id = l.id;
DROP INDEX message_live_due;
DROP INDEX message_live_posts;
CREATE INDEX message_live_due ON message_live (caller_id, stream, next_at, id) WHERE remaining_sends > 0 AND kind <> 1;
CREATE INDEX message_live_posts ON message_live (caller_id, lane, next_at) WHERE remaining_sends > 0 AND kind = 1;
CREATE INDEX message_live_stuck_caller ON message_live (caller_id) WHERE remaining_sends = 0;

CREATE TABLE stream_usage (
    since     timestamptz,
    stream    text COLLATE "C",
    caller_id bigint,
    bytes     bigint NOT NULL,
    PRIMARY KEY (since, stream, caller_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE stream_usage IS 'How much of each caller a stream took within the minute that begins at since; rows are removed after an hour.';
COMMENT ON COLUMN stream_usage.stream IS 'MESSAGES, USERS, or ACCEPTED whatever TWO_PHASE_STREAM calls it.';
COMMENT ON COLUMN stream_usage.bytes IS 'Data, and for each message what the stream keeps beside it.';

INSERT INTO upkeep (what) VALUES ('users');
COMMENT ON COLUMN upkeep.seq IS 'Where the next look at a stream goes on; 0: at its beginning. Of users: up to which place of the stream USERS single messages were removed.';

ALTER TABLE alerts DROP CONSTRAINT alerts_kind_check, ADD CONSTRAINT alerts_kind_check CHECK (kind IN ('failure_rate', 'backlog', 'stream_full'));
COMMENT ON COLUMN alerts.kind IS 'failure_rate (value is a part of 1), backlog (value is a number of tasks) or stream_full (value is a percentage; queue names the stream).';
