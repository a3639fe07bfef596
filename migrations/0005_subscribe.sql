-- Subscribe messages to WeChat.

CREATE TABLE subscribe_message_logs (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    template_id      varchar(100) NOT NULL,
    template_type    varchar(50) NOT NULL,
    business_type    varchar(50) NOT NULL,
    business_id      numeric(20) NOT NULL CHECK (business_id BETWEEN 0 AND 18446744073709551615),
    receiver_user_id numeric(20) NOT NULL CHECK (receiver_user_id BETWEEN 0 AND 18446744073709551615),
    receiver_openid  varchar(100) NOT NULL,
    message_data     jsonb NOT NULL,
    page_path        varchar(1024),
    send_status      smallint NOT NULL DEFAULT 0 CHECK (send_status BETWEEN 0 AND 2),
    send_time        timestamptz NOT NULL DEFAULT now(),
    retry_count      integer NOT NULL DEFAULT 0,
    error_code       varchar(50),
    error_message    text,
    caller_id        bigint NOT NULL,
    task_id          uuid NOT NULL,
    retries_before   integer NOT NULL DEFAULT 0,
    doubtful         boolean NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX uk_business_template_receiver ON subscribe_message_logs (business_type, business_id, template_type, receiver_user_id);
CREATE INDEX subscribe_message_logs_failed ON subscribe_message_logs (send_time) WHERE send_status = 2;
CREATE INDEX subscribe_message_logs_failed_caller ON subscribe_message_logs (caller_id, send_time) WHERE send_status = 2;
CREATE INDEX subscribe_message_logs_time ON subscribe_message_logs (send_time);
CREATE INDEX subscribe_message_logs_caller ON subscribe_message_logs (caller_id, send_time);
CREATE INDEX subscribe_message_logs_settled ON subscribe_message_logs (updated_at, id) WHERE send_status <> 0;
COMMENT ON TABLE subscribe_message_logs IS 'One row for each subscribe message, which is identified by business event, type of template and receiver (uk_business_template_receiver).';
COMMENT ON COLUMN subscribe_message_logs.template_id IS 'The id of the template at WeChat.';
COMMENT ON COLUMN subscribe_message_logs.template_type IS 'The type of the message, such as BOOKING_CONFIRM.';
COMMENT ON COLUMN subscribe_message_logs.business_type IS 'The type of the business event, such as course_booking.';
COMMENT ON COLUMN subscribe_message_logs.business_id IS 'The id of the business event, unsigned 64 bits.';
COMMENT ON COLUMN subscribe_message_logs.receiver_user_id IS 'The id of the receiver in the business, unsigned 64 bits.';
COMMENT ON COLUMN subscribe_message_logs.receiver_openid IS 'The id of the receiver at WeChat.';
COMMENT ON COLUMN subscribe_message_logs.message_data IS 'The values that the newest send fills into the template.';
COMMENT ON COLUMN subscribe_message_logs.send_status IS '0 sending, 1 sent, 2 failed.';
COMMENT ON COLUMN subscribe_message_logs.send_time IS 'When it was last submitted, or when the task of its newest send last changed. For a sent message: the sent_at of the report, if there is one; a time before created_at, or more than 15 minutes before the report, is raised to that limit, and a time after the report is lowered to it.';
COMMENT ON COLUMN subscribe_message_logs.retry_count IS 'The sum of the retries of all its sends.';
COMMENT ON COLUMN subscribe_message_logs.task_id IS 'The task of its newest send.';
COMMENT ON COLUMN subscribe_message_logs.retries_before IS 'Retries of the sends before the newest.';
COMMENT ON COLUMN subscribe_message_logs.doubtful IS 'It is unknown whether one of its sends was delivered.';

CREATE TABLE subscribe_message_sends (
    task_id           uuid PRIMARY KEY,
    log_id            bigint NOT NULL,
    template_id       varchar(100) NOT NULL,
    receiver_openid   varchar(100) NOT NULL,
    message_data      jsonb NOT NULL,
    page_path         varchar(1024),
    lang              varchar(10),
    miniprogram_state varchar(20),
    created_at        timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX subscribe_message_sends_log ON subscribe_message_sends (log_id, created_at);
COMMENT ON TABLE subscribe_message_sends IS 'One row for each send of a subscribe message: the content of its task. The rows with one log_id are the history of the message.';
COMMENT ON COLUMN subscribe_message_sends.miniprogram_state IS 'Which version of the mini program a tap opens: developer, trial or formal; null: formal.';

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
COMMENT ON TABLE archived_subscribe_message_logs IS 'Sent and failed rows of subscribe_message_logs that are older than RETENTION_DAYS. They cannot be submitted as new messages; a failed one moves back when it is sent again.';
COMMENT ON COLUMN archived_subscribe_message_logs.send_status IS 'As in subscribe_message_logs: 1 sent, 2 failed.';

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
COMMENT ON COLUMN archived_subscribe_message_sends.miniprogram_state IS 'As in subscribe_message_sends.';

-- Before a submission inserts the row of a message, it checks that the message is not archived. But the message may be archived while the
-- insert waits for the lock on an existing row. So this trigger checks again after the insert: each statement of a trigger function sees
-- what was committed before the statement.
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

-- Moves a subscribe message and its sends out of the archive, so that the message can be sent again. SECURITY DEFINER: the role that the
-- functions of Sendonce log in as may neither delete archived messages nor choose the id of a new message. If the archive has no such message, nothing happens.
-- Of two concurrent calls for one message, the second waits for the first.
CREATE FUNCTION restore_subscribe_message(message_id bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH l AS (
        DELETE FROM public.archived_subscribe_message_logs WHERE id = message_id RETURNING *
    ), s AS (
        DELETE FROM public.archived_subscribe_message_sends WHERE log_id = message_id RETURNING *
    ), g AS (
        INSERT INTO public.subscribe_message_logs (id, template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid,
            message_data, page_path, send_status, send_time, retry_count, error_code, error_message, caller_id, task_id, retries_before, doubtful,
            created_at, updated_at)
        OVERRIDING SYSTEM VALUE
        SELECT id, template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid,
            message_data, page_path, send_status, send_time, retry_count, error_code, error_message, caller_id, task_id, retries_before, doubtful,
            created_at, updated_at
        FROM l
    )
    INSERT INTO public.subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data, page_path, lang, miniprogram_state,
        created_at)
    SELECT task_id, log_id, template_id, receiver_openid, message_data, page_path, lang, miniprogram_state, created_at FROM s
$$;
REVOKE EXECUTE ON FUNCTION restore_subscribe_message(bigint) FROM PUBLIC;

CREATE TABLE subscribe_totals (
    day           date NOT NULL,
    caller_id     bigint NOT NULL,
    template_type varchar(50) NOT NULL,
    total         bigint NOT NULL,
    success       bigint NOT NULL,
    failed        bigint NOT NULL,
    PRIMARY KEY (caller_id, day, template_type)
);
CREATE INDEX subscribe_totals_day ON subscribe_totals (day);
COMMENT ON TABLE subscribe_totals IS 'Numbers of subscribe messages by the UTC day of their send_time. Only messages with a send_time before counted_to of the newest row of task_totals (NULL: the end of its day) are counted. A number is correct after the rows of subscribe_total_changes are added.';
COMMENT ON COLUMN subscribe_totals.template_type IS 'The type of the messages, for at most 1000 types of a day and caller. '''': all other types.';
COMMENT ON COLUMN subscribe_totals.total IS 'Messages of any send_status.';

CREATE TABLE subscribe_total_changes (
    day           date NOT NULL,
    caller_id     bigint NOT NULL,
    template_type varchar(50) NOT NULL,
    total         bigint NOT NULL,
    success       bigint NOT NULL,
    failed        bigint NOT NULL
);
CREATE INDEX subscribe_total_changes_caller ON subscribe_total_changes (caller_id, day);
COMMENT ON TABLE subscribe_total_changes IS 'Changes of subscribe_totals: a change of a counted message inserts rows here, so that it never waits for another change. Maintenance adds the rows to subscribe_totals and deletes them.';
COMMENT ON COLUMN subscribe_total_changes.total IS '1 in a row with the new day and status of a message, -1 in a row with the old ones. success and failed are the same number or 0.';

-- Stores the change of the totals when the day or the status of a counted message changes. Counting takes the same lock (tasks.TotalsLock)
-- in exclusive mode.
CREATE FUNCTION move_subscribe_total() RETURNS trigger
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
DECLARE
    counted timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7310001);
    SELECT coalesce(counted_to, (day + 1)::timestamp AT TIME ZONE 'UTC') INTO counted FROM task_totals ORDER BY day DESC LIMIT 1;
    INSERT INTO subscribe_total_changes (day, caller_id, template_type, total, success, failed)
    SELECT (send_time AT TIME ZONE 'UTC')::date, caller_id, template_type, n, CASE send_status WHEN 1 THEN n ELSE 0 END, CASE send_status WHEN 2 THEN n ELSE 0 END
    FROM (VALUES (OLD.send_time, OLD.caller_id, OLD.template_type, OLD.send_status, -1),
                 (NEW.send_time, NEW.caller_id, NEW.template_type, NEW.send_status, 1))
        AS moved (send_time, caller_id, template_type, send_status, n)
    WHERE send_time < counted;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION move_subscribe_total() FROM PUBLIC;
-- Nothing of today is counted yet, so the trigger fires only if one of the two times is before today. There is no trigger for INSERT or
-- DELETE: an archived message still counts, and a restored message is inserted unchanged before it is updated.
CREATE TRIGGER subscribe_message_logs_totals AFTER UPDATE ON subscribe_message_logs FOR EACH ROW
WHEN (least(OLD.send_time, NEW.send_time) < date_trunc('day', now(), 'UTC')
    AND (OLD.send_time, OLD.send_status) IS DISTINCT FROM (NEW.send_time, NEW.send_status))
EXECUTE FUNCTION move_subscribe_total();

CREATE TABLE template_pauses (
    template_id varchar(100) NOT NULL,
    caller_id   bigint NOT NULL,
    strikes     smallint NOT NULL,
    paused_at   timestamptz,
    reason      text NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (template_id, caller_id)
);
COMMENT ON TABLE template_pauses IS 'Consecutive errors of a template of subscribe messages, by caller. If paused_at is set, the caller''s messages with the template are not sent.';
COMMENT ON COLUMN template_pauses.caller_id IS 'The caller that submitted the messages: callers.id, 0 for the built-in admin.';
COMMENT ON COLUMN template_pauses.strikes IS 'Consecutive errors that the template, or the values that the caller fills into it, caused.';
COMMENT ON COLUMN template_pauses.reason IS 'The last error, as text for operators.';

CREATE TABLE provider_tokens (
    provider   text NOT NULL,
    app_id     text NOT NULL,
    token      text NOT NULL CHECK (token LIKE 'enc2.%'),
    expires_at timestamptz NOT NULL,
    version    bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, app_id)
);
COMMENT ON TABLE provider_tokens IS 'Access tokens of providers, shared by all instances.';
