-- When a thing was last done that is to be done now and then, whoever does it: a fresh instance need not do it again.
CREATE TABLE upkeep (
    what     text PRIMARY KEY,
    begun_at timestamptz NOT NULL DEFAULT '-infinity',
    place    uuid -- where the next one goes on; null: at the beginning
);
INSERT INTO upkeep (what) VALUES ('house'), ('events'), ('alerts');
