-- The role of the functions writes these tables. One row with a time, a number or a length that no version of Sendonce writes could
-- make statements fail that read many rows, for all callers, so the tables refuse such rows. Existing rows are not read here, since
-- this locks the tables; the next migration reads them.

-- column_bounds lists each column with the condition that it must meet, and with what replaces a value that does not; null: the row
-- is deleted. It exists until the next migration has used it.
CREATE FUNCTION column_bounds() RETURNS TABLE (of_table regclass, of_column name, condition text, replacement text)
LANGUAGE sql STABLE SET search_path = public, pg_temp AS $$
    WITH texts (of_column, bytes, replacement) AS (VALUES
        ('messages.data', 131072, '''{}'''), ('archived_messages.data', 131072, '''{}'''),
        ('webhook_events.payload', 2097152, '''{}'''), ('webhook_deliveries.own_payload', 2097152, '''{}'''),
        ('dead_letters.event', 2097152, '''{}''')
    )
    SELECT c.oid::regclass, a.attname, format(CASE
            -- -infinity is their default.
            WHEN full_name IN ('event_outbox.next_at', 'upkeep.begun_at') THEN '%1$I <= ''9999-12-31 23:59:59.999999+00'''
            WHEN type = 'timestamptz' THEN '%1$I BETWEEN ''0001-01-01 00:00:00+00'' AND ''9999-12-31 23:59:59.999999+00'''
            WHEN type = 'date' THEN '%1$I BETWEEN ''0001-01-01'' AND ''9999-12-31'''
            WHEN type = 'float8' THEN '%1$I BETWEEN -1e15 AND 1e15' -- NaN is greater
            WHEN full_name = 'provider_tokens.version' THEN '%1$I BETWEEN 1 AND 1000000000000000'
            WHEN full_name = 'event_outbox.ids' THEN 'pg_column_size(%1$I) <= 1048576 AND cardinality(%1$I) > 0 AND array_position(%1$I, NULL) IS NULL'
            WHEN full_name IN ('webhook_deliveries.tries', 'archived_messages.receipts') THEN 'pg_column_size(%1$I) <= 1048576 AND jsonb_typeof(%1$I) = ''array'''
            WHEN type = 'jsonb' THEN 'pg_column_size(%1$I) <= 1048576'
            WHEN type LIKE '\_%' THEN 'pg_column_size(%1$I) <= 1048576 AND array_position(%1$I, NULL) IS NULL'
            ELSE 'octet_length(%1$I) <= %2$s'
        END, a.attname, coalesce(texts.bytes, 65536)),
        CASE
            WHEN full_name IN ('event_outbox.ids', 'stream_usage.since') OR type = 'date' THEN NULL
            WHEN type = 'timestamptz' THEN 'now()'
            WHEN type = 'float8' THEN '0'
            WHEN full_name = 'provider_tokens.version' THEN '1'
            WHEN full_name IN ('webhook_deliveries.tries', 'archived_messages.receipts') THEN '''[]'''
            WHEN type = 'jsonb' OR type LIKE '\_%' THEN '''{}'''
            WHEN type = 'text' THEN coalesce(texts.replacement, format('left(%I, 100)', a.attname))
            WHEN type = 'bytea' THEN '''\x'''
        END
    FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    JOIN pg_type t ON t.oid = a.atttypid
    CROSS JOIN LATERAL (SELECT t.typname::text AS type, c.relname || '.' || a.attname AS full_name) n
    LEFT JOIN texts ON texts.of_column = full_name
    -- The logs are partitioned: the functions cannot choose their times, and read a page of bounded length.
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND NOT c.relispartition AND c.relname <> 'schema_migrations'
        AND (type IN ('timestamptz', 'date', 'float8', 'text', 'bytea', 'jsonb') OR type LIKE '\_%' OR full_name = 'provider_tokens.version')
    ORDER BY c.relname, a.attnum
$$;

-- One constraint for each table: each costs every statement the time to prepare it.
DO $$
DECLARE
    bounded record;
BEGIN
    FOR bounded IN
        SELECT of_table, string_agg(condition, ' AND ') AS conditions FROM column_bounds() GROUP BY of_table ORDER BY of_table::text COLLATE "C"
    LOOP
        EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I CHECK (%s) NOT VALID', bounded.of_table, bounded.of_table || '_bounds', bounded.conditions);
    END LOOP;
END $$;
