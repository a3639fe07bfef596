-- Who may confirm a message. One to a user: that user. One to a subject: the callers that were granted it. One to a URL that asks for an
-- explicit confirmation: whoever has the token that only its deliveries carry.
ALTER TABLE callers ADD COLUMN receives text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN callers.receives IS 'Patterns of the subjects whose messages it may confirm, as NATS writes them: * is one token, > at the end is one or more. Empty = none.';

ALTER TABLE messages ADD COLUMN confirm_token bytea;
COMMENT ON COLUMN messages.confirm_token IS 'Secret, 32 random bytes: what a confirmation of a message to a URL must give back. Made before the first send; null unless confirm.';
ALTER TABLE archived_messages ADD COLUMN confirm_token bytea;
COMMENT ON COLUMN archived_messages.confirm_token IS 'That of messages.';
