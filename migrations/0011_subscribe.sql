-- Subscribe messages to WeChat (seed 000).

-- The seed's table: one row for each message that a business event is worth to one user. send_status: 0 sending, 1 sent, 2 failed.
-- task_id: the newest send of it; retry_count: retries of all its sends. doubtful: of some send nobody knows whether it was delivered.
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

-- Each send of a row with what it sends: the body of a task, and the row's history.
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
