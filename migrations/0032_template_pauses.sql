-- Errors that a template is to blame for count for the caller that ordered the message, and so does the pause: a caller that sends
-- wrong data stops its own messages. A pause from before stays in force for all callers until an operator lifts it; strikes short
-- of a pause are forgotten. A process of an older version can add no strike: its trigger calls it again.
DELETE FROM template_pauses WHERE paused_at IS NULL;
ALTER TABLE template_pauses ADD COLUMN caller_id bigint NOT NULL DEFAULT -1;
ALTER TABLE template_pauses ALTER COLUMN caller_id DROP DEFAULT, DROP CONSTRAINT template_pauses_pkey, ADD PRIMARY KEY (template_id, caller_id);
COMMENT ON TABLE template_pauses IS 'Templates of subscribe messages with errors in a row, by caller; with paused_at the caller''s messages with the template are not sent.';
COMMENT ON COLUMN template_pauses.caller_id IS 'The caller that ordered the messages: callers.id, 0 for the pair of the environment, -1 for all callers.';
