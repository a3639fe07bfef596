-- Rejects rows that only a compromised function writes and that would make the statements of others fail.

-- json accepts texts that its operators cannot read, such as \u0000, and with one such row no bulk change would run. jsonb rejects them.
ALTER TABLE bulk_changes ALTER COLUMN filter TYPE jsonb;

-- The API accepts no negative id: with one such row the list of pauses would fail.
ALTER TABLE template_pauses ADD CONSTRAINT template_pauses_caller CHECK (caller_id >= 0);
