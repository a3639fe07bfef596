-- Append-only logs in monthly partitions (UTC). There is no default partition: a row in a default partition would prevent the creation of
-- the partition for the month of the row. If an insert finds no partition, the function calls make_log_partitions and repeats the insert.

CREATE TABLE receive_logs (
    id            bigint GENERATED ALWAYS AS IDENTITY,
    request_id    varchar(50),
    task_id       uuid,
    caller_id     bigint NOT NULL,
    phone_number  varchar(20),
    content       varchar(200),
    use_template  boolean,
    source_ip     varchar(45),
    user_agent    varchar(500),
    request_data  json, -- jsonb would make inserting a large batch cost a fifth more, and no query reads inside it
    response_data jsonb,
    status_code   integer NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (created_at);
CREATE INDEX idx_receive_logs_created_at ON receive_logs USING brin (created_at) WITH (pages_per_range = 32);
CREATE INDEX idx_receive_logs_task_id ON receive_logs (task_id);
COMMENT ON TABLE receive_logs IS 'Every submission, rejected ones too. Append-only, monthly partitions (UTC).';
COMMENT ON COLUMN receive_logs.status_code IS 'The HTTP status of the response.';

CREATE TABLE send_logs (
    id            bigint GENERATED ALWAYS AS IDENTITY,
    task_id       uuid NOT NULL,
    claim_id      bigint NOT NULL,
    app_id        varchar(50) NOT NULL,
    phone_number  varchar(20) NOT NULL,
    content       varchar(200) NOT NULL,
    request_data  jsonb,
    response_data jsonb,
    created_at    timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (created_at);
CREATE INDEX idx_send_logs_task_id ON send_logs (task_id);
COMMENT ON TABLE send_logs IS 'Every claim of a task. Append-only, monthly partitions (UTC).';

CREATE TABLE report_logs (
    id            bigint GENERATED ALWAYS AS IDENTITY,
    task_id       uuid NOT NULL,
    claim_id      bigint,
    app_id        varchar(50),
    status        integer,
    verdict       text NOT NULL,
    error_code    varchar(50),
    error_message varchar(500),
    request_data  json,
    created_at    timestamptz NOT NULL DEFAULT now(),
    caller_id     bigint
) PARTITION BY RANGE (created_at);
CREATE INDEX idx_report_logs_task_id ON report_logs (task_id);
-- A report is foreign if another caller made the newest claim. Only foreign reports have a caller_id, so no other report writes to this
-- index. It shows whether a foreign report of a caller for a task is logged already, without reading the other reports of the task.
CREATE INDEX report_logs_foreign ON report_logs (task_id, caller_id) WHERE caller_id IS NOT NULL;
-- Of expired leases only, which are rare. An index of all rows would make each report slower.
CREATE INDEX report_logs_timeouts ON report_logs (created_at) WHERE verdict IN ('timeout_retry', 'timeout_held', 'timeout_failed');
-- The overview counts the newest reports of each sender app. A BRIN index costs a report almost nothing.
CREATE INDEX report_logs_created ON report_logs USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);
COMMENT ON TABLE report_logs IS 'Every report of a sender, and every decision that sweep or an operator made instead. Append-only, monthly partitions (UTC).';
COMMENT ON COLUMN report_logs.status IS 'What the sender reported: 2 sent, 3 failed; null when the sender did not know, and for decisions of sweep or an operator.';
COMMENT ON COLUMN report_logs.verdict IS 'The result: applied, already, stale_claim (changed nothing); of a lease: extended, sending (extended, about to send); by sweep: timeout_retry, timeout_held, timeout_failed, expired; by an operator: cancelled, resolved, retried.';
COMMENT ON COLUMN report_logs.caller_id IS 'The caller of a report that is stale because another caller made the newest claim (-1: a function of the service itself); null for all other rows. Only the first such report of each caller for a task is kept.';

-- Creates the missing partitions of this month and of the months after it; ahead is the number of months after this one, at most 24.
-- SECURITY DEFINER: the roles of the functions own no table.
CREATE FUNCTION make_log_partitions(ahead integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    parent     text;
    this_month timestamp := date_trunc('month', now() AT TIME ZONE 'UTC');
    month      timestamp;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('sendonce.log_partitions'));
    FOREACH parent IN ARRAY ARRAY['receive_logs', 'send_logs', 'report_logs'] LOOP
        FOR n IN 0..least(greatest(ahead, 0), 24) LOOP
            month := this_month + make_interval(months => n);
            CONTINUE WHEN to_regclass(parent || to_char(month, '_YYYYMM')) IS NOT NULL;
            -- CREATE TABLE … PARTITION OF would lock the parent against all writers; ATTACH PARTITION does not.
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', parent || to_char(month, '_YYYYMM'), parent);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                parent, parent || to_char(month, '_YYYYMM'), month::text || '+00', (month + interval '1 month')::text || '+00');
        END LOOP;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION make_log_partitions(integer) FROM PUBLIC;

-- Returns the partitions whose upper bound is not after the parameter before: all their rows are older. Postgres writes and parses the
-- bounds with the TimeZone and DateStyle that are set here.
CREATE FUNCTION old_log_partitions(before timestamptz) RETURNS TABLE (name text, ends timestamptz)
LANGUAGE sql STABLE SET search_path = public, pg_temp SET TimeZone = 'UTC' SET DateStyle = 'ISO' AS $$
    SELECT * FROM (
        SELECT c.relname::text, (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''([^'']+)''\)'))[1]::timestamptz AS upper_bound
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent IN ('receive_logs'::regclass, 'send_logs'::regclass, 'report_logs'::regclass)
    ) partitions
    WHERE upper_bound <= before
    ORDER BY 2, 1
$$;
REVOKE EXECUTE ON FUNCTION old_log_partitions(timestamptz) FROM PUBLIC;

-- Drops a partition if old_log_partitions returns it; otherwise the result is false. SECURITY DEFINER: the roles of the functions own no
-- table. The drop waits at most 100 ms for the lock on the parent table, because all writers wait while the lock is requested or held.
CREATE FUNCTION drop_log_partition(partition text, before timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '100ms' AS $$
BEGIN
    IF before > now() - interval '1 day' THEN
        RAISE EXCEPTION 'logs of the last day are not dropped';
    END IF;
    IF NOT EXISTS (SELECT FROM old_log_partitions(before) WHERE name = partition) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS %I', partition);
    RETURN true;
END $$;
REVOKE EXECUTE ON FUNCTION drop_log_partition(text, timestamptz) FROM PUBLIC;
