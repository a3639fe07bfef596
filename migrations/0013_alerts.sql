-- Queues in trouble (seed 000, the last section). One row is one incident; value is what raised it.
CREATE TABLE alerts (
    id            uuid PRIMARY KEY,
    kind          text NOT NULL CHECK (kind IN ('failure_rate', 'backlog')),
    queue         text COLLATE "C" NOT NULL,
    value         double precision NOT NULL,
    threshold     double precision NOT NULL,
    since         timestamptz NOT NULL DEFAULT now(),
    cleared_at    timestamptz,
    cleared_value double precision,
    CHECK ((cleared_at IS NULL) = (cleared_value IS NULL))
);
-- One incident at a time, whoever looks.
CREATE UNIQUE INDEX alerts_open ON alerts (kind, queue) WHERE cleared_at IS NULL;

-- The results of the last minutes are looked for: what no range covers yet is read whole, until a vacuum.
ALTER INDEX task_done_reported SET (autosummarize = on);
