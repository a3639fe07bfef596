-- Counters of the overview and of the metrics. They are counted from rows that submissions, claims and reports write anyway, some time
-- later. So no call takes longer because of the counters. See shared/store/overview/doc.go.

CREATE TABLE overview_totals (
    kind       smallint NOT NULL CHECK (kind BETWEEN 0 AND 10),
    key        smallint NOT NULL,
    name       text COLLATE "C" NOT NULL CHECK (octet_length(name) <= 255),
    n          bigint NOT NULL CHECK (n >= 0),
    seconds    double precision NOT NULL CHECK (seconds >= 0),
    last_at    timestamptz,
    counted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, key, name)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE overview_totals IS 'Counters of queues, sender apps and webhook deliveries. At most 200 queues and 200 apps have counters of their own; all others are counted together under the empty name.';
COMMENT ON COLUMN overview_totals.kind IS '0 a name, 1 submitted, 2 claims, 3 finished, 4 durations, 5 lease timeouts, 6 waits, all by queue; 7 webhook deliveries; 8 finished, 9 lease timeouts, 10 newest claim, all by app.';
COMMENT ON COLUMN overview_totals.key IS 'Of kind 0: 0 a queue, 1 an app. Of 3: the reason of task_done. Of 4 and 6: the bucket. Of 7: the state of webhook_deliveries. Of 8: the status of task_done. Of all others 0.';
COMMENT ON COLUMN overview_totals.seconds IS 'The sum of the durations that n counts, for kinds 4 and 6.';
COMMENT ON COLUMN overview_totals.last_at IS 'Of kind 8: the time of the newest result. Of kind 10: the time of the newest counted claim.';
COMMENT ON COLUMN overview_totals.counted_at IS 'When this was last counted. A name that was not counted for 30 days is deleted with its counters.';

CREATE TABLE overview_throughput (
    since     timestamptz,
    queue     text COLLATE "C" CHECK (octet_length(queue) <= 63),
    submitted bigint NOT NULL,
    succeeded bigint NOT NULL,
    failed    bigint NOT NULL,
    PRIMARY KEY (since, queue),
    CONSTRAINT overview_throughput_counters CHECK (least(submitted, succeeded, failed) >= 0)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE overview_throughput IS 'Numbers of tasks submitted and finished in the five minutes that begin at since, by queue. Queues without a name in overview_totals are counted together under the empty name. Kept for a day.';

CREATE TABLE overview_counted (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    counted_to timestamptz NOT NULL
);
COMMENT ON TABLE overview_counted IS 'Everything before counted_to is included in overview_totals and overview_throughput. One row.';
-- counted_to begins in the past, so that the first count does not wait for Lag of package overview.
INSERT INTO overview_counted (counted_to) VALUES (now() - interval '6 hours');
