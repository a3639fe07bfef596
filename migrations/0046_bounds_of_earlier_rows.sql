-- Rows from before their tables had bounds. Others write to the tables meanwhile, except to one that has rows out of bounds.
DO $$
DECLARE
    bounded record;
    found   boolean;
BEGIN
    FOR bounded IN
        SELECT of_table, string_agg(condition, ' AND ') AS conditions,
            coalesce(string_agg(condition, ' AND ') FILTER (WHERE replacement IS NULL), 'true') AS or_deleted,
            string_agg(format('%1$I = CASE WHEN %2$s IS NOT FALSE THEN %1$I ELSE %3$s END', of_column, '(' || condition || ')', replacement), ', ')
                FILTER (WHERE replacement IS NOT NULL) AS replaced
        FROM column_bounds() GROUP BY of_table ORDER BY of_table::text COLLATE "C"
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE (%s) IS FALSE)', bounded.of_table, bounded.conditions) INTO found;
        IF found THEN
            -- The triggers would count what such a row says, or refuse it.
            EXECUTE format('ALTER TABLE %s DISABLE TRIGGER USER', bounded.of_table);
            EXECUTE format('DELETE FROM %s WHERE (%s) IS FALSE', bounded.of_table, bounded.or_deleted);
            IF bounded.replaced IS NOT NULL THEN
                EXECUTE format('UPDATE %s SET %s WHERE (%s) IS FALSE', bounded.of_table, bounded.replaced, bounded.conditions);
            END IF;
            EXECUTE format('ALTER TABLE %s ENABLE TRIGGER USER', bounded.of_table);
        END IF;
        EXECUTE format('ALTER TABLE %s VALIDATE CONSTRAINT %I', bounded.of_table, bounded.of_table || '_bounds');
    END LOOP;
END $$;

DROP FUNCTION column_bounds();
