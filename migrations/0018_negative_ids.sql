-- The API accepts no negative id. A single row with one, which only a compromised function writes, would make pages that show it fail for
-- all callers, so the tables reject such rows. Only one constraint for each table: every statement prepares each of them.
DO $$
DECLARE
    bounded record;
BEGIN
    FOR bounded IN
        SELECT c.relname AS table_name, c.relname || '_bounds' AS name, b.oid IS NOT NULL AS exists,
            concat_ws(' AND ', pg_get_expr(b.conbin, b.conrelid), string_agg(format('%I >= %s', a.attname,
                -- -1 is a function of the service itself.
                CASE WHEN a.attname = 'claimed_by' OR c.relname = 'report_logs' AND a.attname = 'caller_id' THEN -1 ELSE 0 END), ' AND ' ORDER BY a.attnum)) AS conditions
        FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
        LEFT JOIN pg_constraint b ON b.conrelid = c.oid AND b.conname = c.relname || '_bounds'
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
            AND a.atttypid = 'bigint'::regtype AND a.attname IN ('caller_id', 'claim_id', 'claimed_by', 'log_id')
        GROUP BY c.relname, b.oid, b.conbin, b.conrelid ORDER BY c.relname COLLATE "C"
    LOOP
        IF bounded.exists THEN
            EXECUTE format('ALTER TABLE %I DROP CONSTRAINT %I', bounded.table_name, bounded.name);
        END IF;
        EXECUTE format('ALTER TABLE %I ADD CONSTRAINT %I CHECK (%s)', bounded.table_name, bounded.name, bounded.conditions);
    END LOOP;
END $$;

ALTER TABLE template_pauses DROP CONSTRAINT template_pauses_caller; -- now part of template_pauses_bounds
COMMENT ON COLUMN report_logs.caller_id IS 'The caller of a stale report, if another caller made the newest claim, -1 for a function of the service itself; else null. Only the first such report of each caller for a task is kept.';
