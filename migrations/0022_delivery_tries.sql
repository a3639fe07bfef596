-- How often a delivery was tried, of which tries keeps the last 50.
ALTER TABLE webhook_deliveries ADD COLUMN tried integer NOT NULL DEFAULT 0;
UPDATE webhook_deliveries SET tried = jsonb_array_length(tries);
COMMENT ON COLUMN webhook_deliveries.tried IS 'How often it was tried; the column tries keeps the last 50 of them.';
