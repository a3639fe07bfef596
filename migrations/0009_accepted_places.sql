-- What is accepted and not saved is found by the places in the stream that no row accounts for.
DROP INDEX accepted_messages_saved;
CREATE INDEX accepted_messages_place ON accepted_messages (accept_seq);

-- Who is told of a message that is no row: the database will never take it.
ALTER TABLE accepted_messages ADD COLUMN sender text, ADD COLUMN client_msg_id text;

-- Places are those of one stream; one that was made anew counts from its beginning.
ALTER TABLE accepted_checked ADD COLUMN stream_created timestamptz NOT NULL DEFAULT '-infinity';
ALTER TABLE accepted_checked ALTER COLUMN stream_created DROP DEFAULT;

-- What the last look found, so that the next sees whether saving stands still: the end of the stream, and how far it was taken.
ALTER TABLE accepted_checked ADD COLUMN looked_seq bigint NOT NULL DEFAULT 0, ADD COLUMN looked_taken bigint NOT NULL DEFAULT 0,
    ADD COLUMN looked_at timestamptz NOT NULL DEFAULT now();

-- When the broker, or the receiver behind a URL, first had it.
ALTER TABLE message_live ADD COLUMN delivered_at timestamptz;
ALTER TABLE message_done ADD COLUMN delivered_at timestamptz;
