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
COMMENT ON COLUMN alerts.kind IS 'failure_rate (value is a fraction of 1), backlog (value is a number of tasks) or stream_full (value is the fraction of its bytes that is used).';
COMMENT ON COLUMN alerts.queue IS 'The queue. Of stream_full the stream: EVENTS, MESSAGES, USERS, DEADLETTERS, or ACCEPTED, even if TWO_PHASE_STREAM is another name.';

CREATE TABLE upkeep (
    what     text PRIMARY KEY,
    begun_at timestamptz NOT NULL DEFAULT '-infinity',
    place    jsonb,
    seq      bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE upkeep IS 'When each kind of maintenance last began, in any process, so that a new process does not repeat it. Migrate inserts the rows.';
COMMENT ON COLUMN upkeep.what IS 'The kind of maintenance: maintenance (partitions, closed days, archive), events (trimming the stream) or alerts.';
COMMENT ON COLUMN upkeep.place IS 'Where an interrupted archive run continues: {"table", "at", "key"}.';
COMMENT ON COLUMN upkeep.seq IS 'The sequence number where the next scan of a stream continues; 0: at its beginning.';
