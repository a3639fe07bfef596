-- For resending the deliveries that failed since a time. Failed deliveries are few.
CREATE INDEX webhook_deliveries_failed ON webhook_deliveries (finished_at, caller_id, endpoint_id) WHERE state = 2;
