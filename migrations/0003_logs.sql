-- Append-only logs in monthly partitions (UTC). There is no default partition:
-- a row that finds none makes its own (make_log_partitions), so no month can
-- be blocked by rows that strayed into a default.

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
    request_data  jsonb,
    response_data jsonb,
    status_code   integer NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (created_at);
CREATE INDEX idx_receive_logs_created_at ON receive_logs USING brin (created_at) WITH (pages_per_range = 32);
CREATE INDEX idx_receive_logs_task_id ON receive_logs (task_id);

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

-- status is what a sender reported (2, 3), null for what it could not say and for the verdicts of sweep.
CREATE TABLE report_logs (
    id            bigint GENERATED ALWAYS AS IDENTITY,
    task_id       uuid NOT NULL,
    claim_id      bigint,
    app_id        varchar(50),
    status        integer,
    verdict       text NOT NULL,
    error_code    varchar(50),
    error_message varchar(500),
    request_data  jsonb,
    created_at    timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (created_at);
CREATE INDEX idx_report_logs_task_id ON report_logs (task_id);

-- Makes the partitions of this month and of the given number of months after it.
-- SECURITY DEFINER: the functions' role may call it and nothing else of the kind.
CREATE FUNCTION make_log_partitions(ahead integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    parent text;
    first  timestamp := date_trunc('month', now() AT TIME ZONE 'UTC');
    month  timestamp;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('sendonce.log_partitions'));
    FOREACH parent IN ARRAY ARRAY['receive_logs', 'send_logs', 'report_logs'] LOOP
        FOR n IN 0..least(greatest(ahead, 0), 24) LOOP
            month := first + make_interval(months => n);
            CONTINUE WHEN to_regclass(parent || to_char(month, '_YYYYMM')) IS NOT NULL;
            -- Created apart and attached: CREATE … PARTITION OF would lock the parent against every writer.
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', parent || to_char(month, '_YYYYMM'), parent);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                parent, parent || to_char(month, '_YYYYMM'), month::text || '+00', (month + interval '1 month')::text || '+00');
        END LOOP;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION make_log_partitions(integer) FROM PUBLIC;
