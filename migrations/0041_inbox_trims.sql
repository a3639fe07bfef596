-- What was removed from the stream USERS to make room, by user: messages of one sender may be missing in the middle of an inbox, and
-- only the user concerned must be told of a gap.

CREATE TABLE inbox_trims (
    user_name  text PRIMARY KEY,
    seq        bigint NOT NULL,
    trimmed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE inbox_trims IS 'Users whose inbox in the stream USERS was trimmed to make room, for as long as the stream keeps messages.';
COMMENT ON COLUMN inbox_trims.user_name IS 'The user.';
COMMENT ON COLUMN inbox_trims.seq IS 'The last place of the stream at which a message to the user was removed.';
COMMENT ON COLUMN inbox_trims.trimmed_at IS 'When that was last noted.';

-- A place for all users together is asked for no longer.
COMMENT ON COLUMN upkeep.seq IS 'Where the next look at a stream goes on; 0: at its beginning. Of users: no longer used.';
