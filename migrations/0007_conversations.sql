-- The conversations of two users: what they sent to each other, and how far each of them has read.

-- One direction of a conversation in its order: a page merges the two, and what a member has not read is counted in one.
CREATE INDEX messages_between ON messages (sender, destination, created_at, id) WHERE kind = 2;

-- created_at, id: those of the newest message between the two that reader has read. It only moves forward.
CREATE TABLE message_cursors (
    reader     text NOT NULL,
    peer       text NOT NULL,
    created_at timestamptz NOT NULL,
    id         uuid NOT NULL,
    read_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (reader, peer)
);
