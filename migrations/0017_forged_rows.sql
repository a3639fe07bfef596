-- Rows that only a function that was taken over writes, and that would stop others.

-- The type jsonb refuses texts that its operators cannot read, such as \u0000: no bulk change would run.
ALTER TABLE bulk_changes ALTER COLUMN filter TYPE jsonb;

-- The API takes no negative id: the list of pauses would fail.
ALTER TABLE template_pauses ADD CONSTRAINT template_pauses_caller CHECK (caller_id >= 0);
