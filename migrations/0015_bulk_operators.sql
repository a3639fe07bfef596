-- A bulk change runs only while its operator is still allowed to make it. One that a caller began before this migration is stopped,
-- because the hash of its token was not recorded.
ALTER TABLE bulk_changes
    ADD COLUMN token_salt bytea,
    ADD COLUMN token_proof bytea,
    ADD COLUMN stop_reason varchar(100),
    DROP CONSTRAINT bulk_changes_bounds,
    ADD CONSTRAINT bulk_changes_bounds CHECK (action IN ('cancel', 'retry', 'succeeded', 'failed', 'resend')
        AND octet_length(filter::text) <= 4096 AND least(matched, looked, changed, refused) >= 0
        AND octet_length(token_salt) <= 64 AND octet_length(token_proof) <= 64
        AND leased_to BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND created_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND finished_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00');
COMMENT ON COLUMN bulk_changes.token_salt IS 'The salt of token_proof.';
COMMENT ON COLUMN bulk_changes.token_proof IS 'The result of the function token_proof for the salt and the token of the operator that began the change. Null: the built-in admin began it.';
COMMENT ON COLUMN bulk_changes.stop_reason IS 'Why it was stopped, if no operator stopped it.';
