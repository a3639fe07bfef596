-- Delivery before saving: when it was tried is known before there is a row to keep it in. Such a row has neither accept_seq nor
-- saved_at until its message is saved.
ALTER TABLE accepted_messages ALTER COLUMN accept_seq DROP NOT NULL, ALTER COLUMN saved_at DROP NOT NULL, ADD COLUMN delivered_at timestamptz;

COMMENT ON TABLE accepted_messages IS 'Messages that were accepted by a stream, are saved, and are still in the stream to recognise repeats; and those that were delivered and are not saved yet.';
COMMENT ON COLUMN accepted_messages.saved_at IS 'Null: only delivered_at is known yet.';
COMMENT ON COLUMN accepted_messages.delivered_at IS 'When it was delivered to its receiver before it was saved.';
