-- Failed deliveries are few. They are resent by the time at which they failed.
CREATE INDEX webhook_deliveries_failed ON webhook_deliveries (finished_at, caller_id, endpoint_id) WHERE state = 2;
