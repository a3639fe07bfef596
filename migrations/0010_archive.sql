-- What is over: finished tasks leave the main tables, and months of logs go as a whole.

-- A finished task's body and result, as tasks and task_done had them. Found by its id alone.
CREATE TABLE archived_tasks (
    id           uuid PRIMARY KEY,
    seq          bigint NOT NULL,
    caller_id    bigint NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    priority     smallint NOT NULL,
    max_retries  smallint NOT NULL,
    on_unknown   smallint NOT NULL,
    phone_number varchar(20) NOT NULL,
    content      varchar(200) NOT NULL,
    source       varchar(50),
    send_at      timestamptz,
    expires_at   timestamptz,
    callback_url text,
    metadata     jsonb,
    created_at   timestamptz NOT NULL,
    status       smallint NOT NULL,
    reason       smallint NOT NULL,
    retry_count  smallint NOT NULL,
    ended        smallint NOT NULL,
    claim_id     bigint,
    app_id       varchar(50),
    reported_at  timestamptz NOT NULL,
    sent_at      timestamptz,
    result       varchar(500),
    error_code   varchar(50),
    archived_at  timestamptz NOT NULL DEFAULT now()
);

-- The partitions of the logs in which no row can be at or after before. TimeZone and DateStyle are those that a bound is written
-- and read in.
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

-- Drops one of them; false when it is none, or none any more. SECURITY DEFINER: the functions' role owns no table. The lock on its
-- parent keeps writers out for a moment: who waits for it makes them wait, so it is not waited for long.
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
