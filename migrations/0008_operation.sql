-- Alerts and maintenance.

CREATE TABLE alerts (
    id            uuid PRIMARY KEY,
    kind          text NOT NULL CHECK (kind IN ('failure_rate', 'backlog', 'stream_full')),
    queue         text COLLATE "C" NOT NULL,
    value         double precision NOT NULL,
    threshold     double precision NOT NULL,
    since         timestamptz NOT NULL DEFAULT now(),
    cleared_at    timestamptz,
    cleared_value double precision,
    CHECK ((cleared_at IS NULL) = (cleared_value IS NULL))
);
CREATE UNIQUE INDEX alerts_open ON alerts (kind, queue) WHERE cleared_at IS NULL;
CREATE INDEX alerts_cleared ON alerts (cleared_at, id) WHERE cleared_at IS NOT NULL;
COMMENT ON TABLE alerts IS 'Queues and streams over a threshold. One row is one incident; at most one is open for each kind and queue.';
COMMENT ON COLUMN alerts.kind IS 'failure_rate (value is a part of 1), backlog (value is a number of tasks) or stream_full (value is the part of its bytes that is used).';
COMMENT ON COLUMN alerts.queue IS 'The queue. Of stream_full the stream: EVENTS, MESSAGES, USERS, DEADLETTERS, or ACCEPTED whatever TWO_PHASE_STREAM calls it.';

CREATE TABLE upkeep (
    what     text PRIMARY KEY,
    begun_at timestamptz NOT NULL DEFAULT '-infinity',
    place    jsonb,
    seq      bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE upkeep IS 'When each kind of maintenance last began, in whichever process: a fresh instance need not do it again. Migrate inserts the rows.';
COMMENT ON COLUMN upkeep.what IS 'The kind of maintenance, as maintenance (partitions, closed days, archive), events (trim of the stream) or alerts.';
COMMENT ON COLUMN upkeep.place IS 'Where an archive that was left goes on: {"table", "at", "key"}.';
COMMENT ON COLUMN upkeep.seq IS 'Where the next look at a stream goes on; 0: at its beginning.';
