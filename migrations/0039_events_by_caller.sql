-- Events of one caller must not wait behind those of another: a row has the events of one caller, and a relay takes an equal part
-- of each caller's rows. Rows that older functions still write are of no single caller.

DROP INDEX event_outbox_due;
ALTER TABLE event_outbox
    ADD COLUMN caller_id bigint NOT NULL DEFAULT 0,
    ADD COLUMN events integer NOT NULL GENERATED ALWAYS AS (cardinality(ids)) STORED;
CREATE INDEX event_outbox_due ON event_outbox (stream, caller_id, next_at, id);
COMMENT ON COLUMN event_outbox.caller_id IS 'Of task.<state>: whose tasks these are, 0 for the built-in admin. 0 of all other kinds.';
COMMENT ON COLUMN event_outbox.events IS 'How many ids there are.';
COMMENT ON TABLE event_outbox IS 'Events to publish, one row for each commit, kind and caller, ids only. A row is deleted when a stream has all its events.';
