-- What waits for a stream that is full or that no server leads waits as a whole, and other streams go on.

-- A stream with a row is given nothing until then, and a few messages only from then on: once it takes them, the row goes.
CREATE TABLE stream_pauses (
    stream   text COLLATE "C" PRIMARY KEY,
    until    timestamptz NOT NULL,
    failures integer NOT NULL,
    reason   text NOT NULL,
    since    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE stream_pauses IS 'Streams that took nothing when they were last tried. What is for them waits until then, in its place.';
COMMENT ON COLUMN stream_pauses.stream IS 'As message_live.stream and event_outbox.stream.';
COMMENT ON COLUMN stream_pauses.reason IS 'What the broker said, for people.';
COMMENT ON COLUMN stream_pauses.failures IS 'Tries in a row that the stream did not take; 0: the broker itself was away, which pauses nothing.';

ALTER TABLE message_live ADD COLUMN stream text COLLATE "C" NOT NULL DEFAULT '';
COMMENT ON COLUMN message_live.stream IS 'Which stream takes the message, as far as its address tells: MESSAGES, USERS, or other-<n> by the first token of another subject. Empty: to a URL.';
UPDATE message_live l SET stream = CASE
    WHEN m.kind = 2 THEN 'USERS'
    WHEN split_part(m.destination, '.', 1) = 'msg' THEN 'MESSAGES'
    ELSE 'other-' || get_byte(sha256(convert_to(split_part(m.destination, '.', 1), 'UTF8')), 0) % 64 END
FROM messages m WHERE m.id = l.id AND m.kind <> 1;
DROP INDEX message_live_due;
CREATE INDEX message_live_due ON message_live (stream, next_at, id) WHERE remaining_sends > 0 AND kind <> 1;

ALTER TABLE event_outbox
    ADD COLUMN stream text COLLATE "C" NOT NULL GENERATED ALWAYS AS (CASE WHEN starts_with(kind, 'message.') THEN 'USERS' ELSE 'EVENTS' END) STORED,
    ADD COLUMN next_at timestamptz NOT NULL DEFAULT '-infinity';
COMMENT ON COLUMN event_outbox.next_at IS 'Not to be published before; in the future only for events that a stream refuses by themselves.';
CREATE INDEX event_outbox_due ON event_outbox (stream, next_at, id);

-- seq: where a look at a stream goes on; 0: at its beginning.
ALTER TABLE upkeep ADD COLUMN seq bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN upkeep.seq IS 'Where the next look at a stream goes on; 0: at its beginning.';
