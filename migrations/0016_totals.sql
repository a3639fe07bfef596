-- A day with many results is counted in parts.
ALTER TABLE task_totals ADD COLUMN counted_to timestamptz;
COMMENT ON COLUMN task_totals.counted_to IS 'Results before this time are counted, later ones of the day are not yet. NULL: the whole day is counted, and the day is closed.';
