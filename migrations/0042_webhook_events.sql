-- An event is stored once, however many endpoints of its caller it goes to. A delivery that an older version recorded has its own
-- payload and keeps it. The column has a new name so that functions of an older version, which would post nothing for the others,
-- can neither record nor claim deliveries: events and deliveries wait until such functions are replaced.

CREATE TABLE webhook_events (
    id          text PRIMARY KEY,
    payload     text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX webhook_events_recorded ON webhook_events (recorded_at, id);
COMMENT ON TABLE webhook_events IS 'Events that webhook_deliveries sends, each once. Kept for as long as one of its deliveries.';
COMMENT ON COLUMN webhook_events.payload IS 'The body of each POST.';
COMMENT ON COLUMN webhook_events.recorded_at IS 'When it was last recorded, to half a day.';

ALTER TABLE webhook_deliveries RENAME COLUMN payload TO own_payload;
ALTER TABLE webhook_deliveries ALTER COLUMN own_payload DROP NOT NULL;
COMMENT ON COLUMN webhook_deliveries.own_payload IS 'The body of each POST, of deliveries recorded before webhook_events was added; null: that of webhook_events.';
