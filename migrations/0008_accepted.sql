-- Messages that were acknowledged from a stream before they were saved (seed 004).

-- accept_seq: the place in the stream, which is a sender's order; accepted_at: by the clock of the process that accepted it,
-- producer: which that was. All null for a message that was saved at once.
ALTER TABLE messages ADD COLUMN accept_seq bigint, ADD COLUMN accepted_at timestamptz, ADD COLUMN producer text;

-- What the stream still holds although it is saved, to recognise repeats; a row goes when its message is forgotten.
CREATE TABLE accepted_messages (
    id         uuid PRIMARY KEY,
    accept_seq bigint NOT NULL,
    saved_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX accepted_messages_saved ON accepted_messages (saved_at);

-- How far the stream was compared with what is saved: nothing at or before accept_seq is missing.
CREATE TABLE accepted_checked (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    accept_seq bigint NOT NULL
);
