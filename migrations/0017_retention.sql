-- What is over leaves the main tables, each table by itself. What the archive looks for in a table, it finds by an index on when
-- that was over.

-- Messages.

CREATE INDEX message_done_finished ON message_done (finished_at, id);

-- A final message: body, end and receipts. Its id is never given to another message.
CREATE TABLE archived_messages (
    id                uuid PRIMARY KEY,
    call_id           uuid NOT NULL,
    caller_id         bigint NOT NULL,
    sender            text NOT NULL,
    client_msg_id     varchar(255) NOT NULL,
    fingerprint       uuid NOT NULL,
    kind              smallint NOT NULL,
    destination       text NOT NULL,
    exchange_name     text,
    routing_key       text,
    type              varchar(255) NOT NULL,
    data              text NOT NULL,
    sent_at           timestamptz,
    confirm           boolean NOT NULL,
    max_sends         smallint NOT NULL,
    expected_receipts smallint NOT NULL,
    created_at        timestamptz NOT NULL,
    accept_seq        bigint,
    accepted_at       timestamptz,
    producer          text,
    status            smallint NOT NULL,
    abandoned         boolean NOT NULL,
    remaining_sends   smallint NOT NULL,
    send_no           smallint NOT NULL,
    epoch             integer NOT NULL,
    finished_at       timestamptz NOT NULL,
    finished_by       text,
    last_error        varchar(500),
    delivered_at      timestamptz,
    receipts          jsonb NOT NULL,
    archived_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX archived_messages_between ON archived_messages (sender, destination, created_at, id) WHERE kind = 2;
COMMENT ON TABLE archived_messages IS 'Final messages older than RETENTION_DAYS: body, end and receipts in one row. Their ids stay taken.';
COMMENT ON COLUMN archived_messages.kind IS 'That of messages: 0 a subject, 1 a URL, 2 a user.';
COMMENT ON COLUMN archived_messages.max_sends IS 'That of messages.';
COMMENT ON COLUMN archived_messages.expected_receipts IS 'That of messages.';
COMMENT ON COLUMN archived_messages.status IS 'That of message_done: 1 sent, 2 received; of an abandoned message how far it came: 0 sending, 1 sent.';
COMMENT ON COLUMN archived_messages.remaining_sends IS 'That of message_done.';
COMMENT ON COLUMN archived_messages.send_no IS 'That of message_done.';
COMMENT ON COLUMN archived_messages.receipts IS 'The rows of message_receipts: [{"consumer", "confirmedAt", "sendNo"}].';

-- Subscribe messages.

CREATE INDEX subscribe_message_logs_settled ON subscribe_message_logs (updated_at, id) WHERE send_status <> 0;

CREATE TABLE archived_subscribe_message_logs (
    id               bigint PRIMARY KEY,
    template_id      varchar(100) NOT NULL,
    template_type    varchar(50) NOT NULL,
    business_type    varchar(50) NOT NULL,
    business_id      numeric(20) NOT NULL,
    receiver_user_id numeric(20) NOT NULL,
    receiver_openid  varchar(100) NOT NULL,
    message_data     jsonb NOT NULL,
    page_path        varchar(1024),
    send_status      smallint NOT NULL,
    send_time        timestamptz NOT NULL,
    retry_count      integer NOT NULL,
    error_code       varchar(50),
    error_message    text,
    caller_id        bigint NOT NULL,
    task_id          uuid NOT NULL,
    retries_before   integer NOT NULL,
    doubtful         boolean NOT NULL,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    archived_at      timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX archived_business_template_receiver ON archived_subscribe_message_logs (business_type, business_id, template_type, receiver_user_id);
COMMENT ON TABLE archived_subscribe_message_logs IS 'Sent and failed rows of subscribe_message_logs that are older than RETENTION_DAYS. Their names stay taken; a failed one returns when it is sent again.';
COMMENT ON COLUMN archived_subscribe_message_logs.send_status IS 'That of subscribe_message_logs: 1 sent, 2 failed.';

CREATE TABLE archived_subscribe_message_sends (
    task_id           uuid PRIMARY KEY,
    log_id            bigint NOT NULL,
    template_id       varchar(100) NOT NULL,
    receiver_openid   varchar(100) NOT NULL,
    message_data      jsonb NOT NULL,
    page_path         varchar(1024),
    lang              varchar(10),
    miniprogram_state varchar(20),
    created_at        timestamptz NOT NULL
);
CREATE INDEX archived_subscribe_message_sends_log ON archived_subscribe_message_sends (log_id, created_at);
COMMENT ON TABLE archived_subscribe_message_sends IS 'The sends of archived_subscribe_message_logs.';
COMMENT ON COLUMN archived_subscribe_message_sends.miniprogram_state IS 'That of subscribe_message_sends.';

-- An order finds that its message is archived before it makes a row, but for one that was archived while the order waited for that
-- very row. This looks once more when the row is made: each statement of a function sees what was committed before it.
CREATE FUNCTION refuse_archived_subscribe_message() RETURNS trigger
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM archived_subscribe_message_logs a WHERE a.business_type = NEW.business_type AND a.business_id = NEW.business_id
            AND a.template_type = NEW.template_type AND a.receiver_user_id = NEW.receiver_user_id) THEN
        RAISE unique_violation USING MESSAGE = 'this subscribe message is archived', CONSTRAINT = 'archived_business_template_receiver';
    END IF;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION refuse_archived_subscribe_message() FROM PUBLIC;
CREATE TRIGGER subscribe_message_logs_archived AFTER INSERT ON subscribe_message_logs
FOR EACH ROW EXECUTE FUNCTION refuse_archived_subscribe_message();

-- What operators did.

CREATE INDEX operator_actions_created ON operator_actions (created_at, id);

CREATE TABLE archived_operator_actions (
    id          bigint PRIMARY KEY,
    caller_id   bigint NOT NULL,
    caller_name varchar(50) NOT NULL,
    request_id  varchar(50) NOT NULL,
    action      text NOT NULL,
    subject     text NOT NULL,
    reason      text,
    before      jsonb,
    after       jsonb,
    created_at  timestamptz NOT NULL
);
COMMENT ON TABLE archived_operator_actions IS 'Rows of operator_actions that are older than RETENTION_DAYS.';
COMMENT ON COLUMN archived_operator_actions.action IS 'That of operator_actions.';
COMMENT ON COLUMN archived_operator_actions.subject IS 'That of operator_actions.';
COMMENT ON COLUMN archived_operator_actions.reason IS 'That of operator_actions.';

-- What is deleted after RETENTION_LOG_DAYS.

CREATE INDEX webhook_deliveries_finished ON webhook_deliveries (finished_at, id) WHERE state <> 0;
CREATE INDEX alerts_cleared ON alerts (cleared_at, id) WHERE cleared_at IS NOT NULL;
CREATE INDEX dead_letters_survived ON dead_letters (created_at, id) WHERE NOT dead;

-- Where an archive that was left goes on: {"table", "at", "key"}.
ALTER TABLE upkeep ALTER COLUMN place TYPE jsonb USING NULL;
