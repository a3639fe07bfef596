-- The one foreign key that costs nothing: endpoints are few and seldom made. shared/store/doc.go says why there is no other.
-- Caller 0, the pair of the environment, has no row: its endpoints refer to none.
ALTER TABLE webhook_endpoints ADD COLUMN registered_caller bigint GENERATED ALWAYS AS (nullif(caller_id, 0)) STORED REFERENCES callers (id);
COMMENT ON COLUMN webhook_endpoints.registered_caller IS 'caller_id, null for caller 0: a caller with endpoints cannot be removed.';
