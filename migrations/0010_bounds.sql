-- The roles of the functions write all tables except schema_migrations. A compromised function could write a row with a time, a number or
-- a length that Sendonce never writes. Then statements that read many rows could fail for all callers. So the tables reject such rows. If a
-- later migration adds a column to a table, it must also replace the constraint of the table. The partitioned logs need bounds only for ids:
-- the functions cannot choose the times of log rows, and read logs in pages of bounded length.
DO $$
DECLARE
    bounded record;
BEGIN
    FOR bounded IN
        -- Only one constraint for each table, because every statement prepares each constraint of its table.
        SELECT c.relname AS table_name, string_agg(format(CASE
                WHEN name IN ('event_outbox.next_at', 'upkeep.begun_at') -- -infinity is their default
                    THEN '(%1$I = ''-infinity'' OR %1$I BETWEEN ''1970-01-01 00:00:00+00'' AND ''9999-12-31 23:59:59.999999+00'')'
                WHEN column_name IN ('send_at', 'sent_at', 'send_time') -- callers choose these
                    THEN '%1$I BETWEEN ''0001-01-01 00:00:00+00'' AND ''9999-12-31 23:59:59.999999+00'''
                -- In Go, the first moment of the year 1 is the zero time: if a row were due at this time, nothing would seem to be due.
                WHEN type = 'timestamptz' THEN '%1$I BETWEEN ''1970-01-01 00:00:00+00'' AND ''9999-12-31 23:59:59.999999+00'''
                WHEN name IN ('subscribe_totals.day', 'subscribe_total_changes.day') THEN '%1$I BETWEEN ''0001-01-01'' AND ''9999-12-31''' -- of a send_time
                WHEN type = 'date' THEN '%1$I BETWEEN ''1970-01-01'' AND ''9999-12-31'''
                WHEN type = 'float8' THEN '%1$I BETWEEN -1e15 AND 1e15' -- excludes NaN, which is greater than all numbers
                WHEN column_name = 'claimed_by' OR name = 'report_logs.caller_id' THEN '%1$I >= -1' -- -1 is a function of the service itself
                WHEN is_id THEN '%1$I >= 0' -- the API accepts no negative id, and Go reads sequence numbers as uint64
                WHEN name = 'provider_tokens.version' THEN '%1$I BETWEEN 1 AND 1000000000000000'
                WHEN name = 'event_outbox.ids' -- ten times what a transaction writes; the relay has all events of a row in memory
                    THEN 'cardinality(%1$I) BETWEEN 1 AND 10000 AND array_position(%1$I, NULL) IS NULL'
                WHEN name IN ('webhook_deliveries.tries', 'archived_messages.receipts') THEN 'octet_length(%1$I::text) <= 1048576 AND jsonb_typeof(%1$I) = ''array'''
                WHEN name IN ('tasks.metadata', 'archived_tasks.metadata') THEN 'octet_length(%1$I::text) <= 4096' -- what submit accepts
                -- The length as text: 1e131071 takes ten bytes in jsonb and 131,072 bytes as text.
                WHEN type = 'jsonb' THEN 'octet_length(%1$I::text) <= 1048576'
                WHEN type LIKE '\_%' THEN 'pg_column_size(%1$I) <= 1048576 AND array_position(%1$I, NULL) IS NULL'
                WHEN name IN ('messages.data', 'archived_messages.data') THEN 'octet_length(%1$I) <= 131072'
                WHEN name IN ('webhook_events.payload', 'dead_letters.event') THEN 'octet_length(%1$I) <= 2097152'
                ELSE 'octet_length(%1$I) <= 65536'
            END, a.attname), ' AND ' ORDER BY a.attnum) AS conditions
        FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
        JOIN pg_type t ON t.oid = a.atttypid
        CROSS JOIN LATERAL (SELECT t.typname::text AS type, a.attname AS column_name, c.relname || '.' || a.attname AS name,
            t.typname = 'int8' AND a.attname IN ('caller_id', 'claim_id', 'claimed_by', 'log_id',
                'seq', 'accept_seq', 'purged_seq', 'looked_seq', 'looked_taken') AS is_id) n
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'schema_migrations'
            AND (is_id OR c.relkind = 'r' AND (type IN ('timestamptz', 'date', 'float8', 'text', 'bytea', 'json', 'jsonb') OR type LIKE '\_%' OR name = 'provider_tokens.version'))
        GROUP BY c.relname ORDER BY c.relname COLLATE "C"
    LOOP
        EXECUTE format('ALTER TABLE %I ADD CONSTRAINT %I CHECK (%s)', bounded.table_name, bounded.table_name || '_bounds', bounded.conditions);
    END LOOP;
END $$;
