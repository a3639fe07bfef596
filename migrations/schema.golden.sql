CREATE TABLE accepted_checked (
    one boolean NOT NULL DEFAULT true,
    accept_seq bigint NOT NULL,
    stream_created timestamp with time zone NOT NULL,
    looked_seq bigint NOT NULL DEFAULT 0,
    looked_taken bigint NOT NULL DEFAULT 0,
    looked_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE accepted_messages (
    id uuid NOT NULL,
    accept_seq bigint,
    saved_at timestamp with time zone DEFAULT now(),
    sender text,
    client_msg_id text,
    delivered_at timestamp with time zone);

CREATE TABLE alerts (
    id uuid NOT NULL,
    kind text NOT NULL,
    queue text COLLATE "C" NOT NULL,
    value double precision NOT NULL,
    threshold double precision NOT NULL,
    since timestamp with time zone NOT NULL DEFAULT now(),
    cleared_at timestamp with time zone,
    cleared_value double precision);

CREATE TABLE archived_messages (
    id uuid NOT NULL,
    call_id uuid NOT NULL,
    caller_id bigint NOT NULL,
    sender text NOT NULL,
    client_msg_id character varying(255) NOT NULL,
    fingerprint uuid NOT NULL,
    kind smallint NOT NULL,
    destination text NOT NULL,
    exchange_name text,
    routing_key text,
    type character varying(255) NOT NULL,
    data text NOT NULL,
    sent_at timestamp with time zone,
    confirm boolean NOT NULL,
    max_sends smallint NOT NULL,
    expected_receipts smallint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    accept_seq bigint,
    accepted_at timestamp with time zone,
    producer text,
    status smallint NOT NULL,
    abandoned boolean NOT NULL,
    remaining_sends smallint NOT NULL,
    send_no smallint NOT NULL,
    epoch integer NOT NULL,
    finished_at timestamp with time zone NOT NULL,
    finished_by text,
    last_error character varying(500),
    delivered_at timestamp with time zone,
    receipts jsonb NOT NULL,
    archived_at timestamp with time zone NOT NULL DEFAULT now(),
    confirm_token bytea);

CREATE TABLE archived_operator_actions (
    id bigint NOT NULL,
    caller_id bigint NOT NULL,
    caller_name character varying(50) NOT NULL,
    request_id character varying(50) NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    reason text,
    before jsonb,
    after jsonb,
    created_at timestamp with time zone NOT NULL);

CREATE TABLE archived_subscribe_message_logs (
    id bigint NOT NULL,
    template_id character varying(100) NOT NULL,
    template_type character varying(50) NOT NULL,
    business_type character varying(50) NOT NULL,
    business_id numeric(20,0) NOT NULL,
    receiver_user_id numeric(20,0) NOT NULL,
    receiver_openid character varying(100) NOT NULL,
    message_data jsonb NOT NULL,
    page_path character varying(1024),
    send_status smallint NOT NULL,
    send_time timestamp with time zone NOT NULL,
    retry_count integer NOT NULL,
    error_code character varying(50),
    error_message text,
    caller_id bigint NOT NULL,
    task_id uuid NOT NULL,
    retries_before integer NOT NULL,
    doubtful boolean NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    archived_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE archived_subscribe_message_sends (
    task_id uuid NOT NULL,
    log_id bigint NOT NULL,
    template_id character varying(100) NOT NULL,
    receiver_openid character varying(100) NOT NULL,
    message_data jsonb NOT NULL,
    page_path character varying(1024),
    lang character varying(10),
    miniprogram_state character varying(20),
    created_at timestamp with time zone NOT NULL);

CREATE TABLE archived_tasks (
    id uuid NOT NULL,
    seq bigint NOT NULL,
    caller_id bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    max_retries smallint NOT NULL,
    on_unknown smallint NOT NULL,
    phone_number character varying(20) NOT NULL,
    content character varying(200) NOT NULL,
    source character varying(50),
    send_at timestamp with time zone,
    expires_at timestamp with time zone,
    callback_url text,
    metadata jsonb,
    created_at timestamp with time zone NOT NULL,
    status smallint NOT NULL,
    reason smallint NOT NULL,
    retry_count smallint NOT NULL,
    ended smallint NOT NULL,
    claim_id bigint,
    app_id character varying(50),
    reported_at timestamp with time zone NOT NULL,
    sent_at timestamp with time zone,
    result character varying(500),
    error_code character varying(50),
    archived_at timestamp with time zone NOT NULL DEFAULT now(),
    claimed_by bigint);

CREATE TABLE blocked_words (
    id integer NOT NULL GENERATED ALWAYS AS IDENTITY,
    word character varying(100) NOT NULL,
    folded text COLLATE "C" NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE callers (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    name character varying(50) NOT NULL,
    token_hash bytea NOT NULL,
    roles text[] NOT NULL,
    queues text[] NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    rotated_at timestamp with time zone,
    revoked_at timestamp with time zone,
    business_types text[] NOT NULL DEFAULT '{}'::text[],
    receives text[] NOT NULL DEFAULT '{}'::text[],
    max_waiting_messages bigint,
    max_waiting_bytes bigint,
    max_waiting_tasks bigint,
    best_priority smallint NOT NULL DEFAULT 0,
    made_by bigint,
    account_id bigint);

CREATE TABLE dead_letters (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    function text NOT NULL,
    event_id text NOT NULL,
    event_type text NOT NULL,
    event text NOT NULL,
    reason text NOT NULL,
    attempts integer NOT NULL,
    dead boolean NOT NULL DEFAULT true,
    created_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE default_sms_data (
    id integer NOT NULL GENERATED ALWAYS AS IDENTITY,
    phone_number character varying(20) NOT NULL,
    content character varying(200) NOT NULL,
    use_template boolean NOT NULL DEFAULT false,
    is_sent boolean NOT NULL DEFAULT false,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE event_outbox (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    kind text NOT NULL,
    reason smallint NOT NULL DEFAULT 0,
    ids uuid[] NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    stream text COLLATE "C" NOT NULL GENERATED ALWAYS AS (
CASE
    WHEN starts_with(kind, 'message.'::text) THEN 'USERS'::text
    ELSE 'EVENTS'::text
END),
    next_at timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone,
    caller_id bigint NOT NULL DEFAULT 0,
    events integer NOT NULL GENERATED ALWAYS AS (cardinality(ids)))
WITH (autovacuum_vacuum_cost_delay=0, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000, vacuum_truncate=off);

CREATE TABLE inbox_trims (
    user_name text NOT NULL,
    seq bigint NOT NULL,
    trimmed_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE message_cursors (
    reader text NOT NULL,
    peer text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    id uuid NOT NULL,
    read_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE message_done (
    id uuid NOT NULL,
    status smallint NOT NULL,
    abandoned boolean NOT NULL,
    remaining_sends smallint NOT NULL,
    send_no smallint NOT NULL,
    epoch integer NOT NULL,
    finished_at timestamp with time zone NOT NULL DEFAULT now(),
    finished_by text,
    last_error character varying(500),
    delivered_at timestamp with time zone);

CREATE TABLE message_live (
    id uuid NOT NULL,
    status smallint NOT NULL DEFAULT 0,
    remaining_sends smallint NOT NULL,
    send_no smallint NOT NULL DEFAULT 0,
    epoch integer NOT NULL DEFAULT 1,
    next_at timestamp with time zone DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    last_error character varying(500),
    kind smallint NOT NULL,
    lane text,
    delivered_at timestamp with time zone,
    stream text COLLATE "C" NOT NULL DEFAULT ''::text,
    caller_id bigint NOT NULL DEFAULT 0,
    bytes integer NOT NULL DEFAULT 0)
WITH (autovacuum_analyze_scale_factor=0, autovacuum_analyze_threshold=100000, autovacuum_vacuum_cost_delay=0, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000, vacuum_truncate=off);

CREATE TABLE message_receipts (
    message_id uuid NOT NULL,
    consumer text NOT NULL,
    confirmed_at timestamp with time zone NOT NULL DEFAULT now(),
    send_no smallint NOT NULL);

CREATE TABLE messages (
    id uuid NOT NULL,
    call_id uuid NOT NULL,
    caller_id bigint NOT NULL,
    sender text NOT NULL,
    client_msg_id character varying(255) NOT NULL,
    fingerprint uuid NOT NULL,
    kind smallint NOT NULL,
    destination text NOT NULL,
    exchange_name text,
    routing_key text,
    type character varying(255) NOT NULL,
    data text NOT NULL,
    sent_at timestamp with time zone,
    confirm boolean NOT NULL,
    max_sends smallint NOT NULL,
    expected_receipts smallint NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    accept_seq bigint,
    accepted_at timestamp with time zone,
    producer text,
    confirm_token bytea);

CREATE TABLE operator_actions (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    caller_id bigint NOT NULL,
    caller_name character varying(50) NOT NULL,
    request_id character varying(50) NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    reason text,
    before jsonb,
    after jsonb,
    created_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE provider_tokens (
    provider text NOT NULL,
    app_id text NOT NULL,
    token text NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    version bigint NOT NULL,
    updated_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE queue_pauses (
    queue text COLLATE "C" NOT NULL,
    until timestamp with time zone,
    reason text NOT NULL,
    paused_by text NOT NULL,
    by_hand boolean NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE receive_logs (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    request_id character varying(50),
    task_id uuid,
    caller_id bigint NOT NULL,
    phone_number character varying(20),
    content character varying(200),
    use_template boolean,
    source_ip character varying(45),
    user_agent character varying(500),
    request_data jsonb,
    response_data jsonb,
    status_code integer NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now())
PARTITION BY RANGE (created_at);

CREATE TABLE report_logs (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    task_id uuid NOT NULL,
    claim_id bigint,
    app_id character varying(50),
    status integer,
    verdict text NOT NULL,
    error_code character varying(50),
    error_message character varying(500),
    request_data jsonb,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    caller_id bigint)
PARTITION BY RANGE (created_at);

CREATE TABLE schema_migrations (
    version integer NOT NULL,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE send_logs (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    task_id uuid NOT NULL,
    claim_id bigint NOT NULL,
    app_id character varying(50) NOT NULL,
    phone_number character varying(20) NOT NULL,
    content character varying(200) NOT NULL,
    request_data jsonb,
    response_data jsonb,
    created_at timestamp with time zone NOT NULL DEFAULT now())
PARTITION BY RANGE (created_at);

CREATE TABLE sms_templates (
    id integer NOT NULL GENERATED ALWAYS AS IDENTITY,
    template_name character varying(100) NOT NULL,
    template_content character varying(200) NOT NULL,
    is_active boolean NOT NULL DEFAULT true,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE stream_pauses (
    stream text COLLATE "C" NOT NULL,
    until timestamp with time zone NOT NULL,
    failures integer NOT NULL,
    reason text NOT NULL,
    since timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE stream_usage (
    since timestamp with time zone NOT NULL,
    stream text COLLATE "C" NOT NULL,
    caller_id bigint NOT NULL,
    bytes bigint NOT NULL)
WITH (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000);

CREATE TABLE submission_keys (
    key uuid NOT NULL,
    fingerprint uuid NOT NULL,
    id uuid NOT NULL);

CREATE TABLE subscribe_message_logs (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    template_id character varying(100) NOT NULL,
    template_type character varying(50) NOT NULL,
    business_type character varying(50) NOT NULL,
    business_id numeric(20,0) NOT NULL,
    receiver_user_id numeric(20,0) NOT NULL,
    receiver_openid character varying(100) NOT NULL,
    message_data jsonb NOT NULL,
    page_path character varying(1024),
    send_status smallint NOT NULL DEFAULT 0,
    send_time timestamp with time zone NOT NULL DEFAULT now(),
    retry_count integer NOT NULL DEFAULT 0,
    error_code character varying(50),
    error_message text,
    caller_id bigint NOT NULL,
    task_id uuid NOT NULL,
    retries_before integer NOT NULL DEFAULT 0,
    doubtful boolean NOT NULL DEFAULT false,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE subscribe_message_sends (
    task_id uuid NOT NULL,
    log_id bigint NOT NULL,
    template_id character varying(100) NOT NULL,
    receiver_openid character varying(100) NOT NULL,
    message_data jsonb NOT NULL,
    page_path character varying(1024),
    lang character varying(10),
    miniprogram_state character varying(20),
    created_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE subscribe_totals (
    day date NOT NULL,
    caller_id bigint NOT NULL,
    template_type character varying(50) NOT NULL,
    total bigint NOT NULL,
    success bigint NOT NULL,
    failed bigint NOT NULL);

CREATE TABLE task_done (
    id uuid NOT NULL,
    status smallint NOT NULL,
    reason smallint NOT NULL,
    retry_count smallint NOT NULL,
    ended smallint NOT NULL,
    claim_id bigint,
    app_id character varying(50),
    reported_at timestamp with time zone NOT NULL DEFAULT now(),
    sent_at timestamp with time zone,
    result character varying(500),
    error_code character varying(50),
    subscribe boolean NOT NULL DEFAULT false,
    claimed_by bigint);

CREATE TABLE task_live (
    id uuid NOT NULL,
    state smallint NOT NULL,
    priority smallint NOT NULL,
    retry_count smallint NOT NULL DEFAULT 0,
    max_retries smallint NOT NULL,
    on_unknown smallint NOT NULL,
    ended smallint NOT NULL DEFAULT 0,
    marks_sending boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    due_at timestamp with time zone,
    expires_at timestamp with time zone,
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    claim_id bigint,
    app_id character varying(50),
    sending_at timestamp with time zone,
    result character varying(500),
    error_code character varying(50),
    caller_id bigint NOT NULL DEFAULT 0,
    callback boolean NOT NULL DEFAULT false,
    claimed_by bigint,
    owned_claim bigint)
WITH (autovacuum_analyze_scale_factor=0, autovacuum_analyze_threshold=100000, autovacuum_vacuum_cost_delay=0, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000, vacuum_truncate=off);

CREATE TABLE task_totals (
    day date NOT NULL,
    succeeded bigint NOT NULL,
    failed bigint NOT NULL,
    counted_to timestamp with time zone,
    subscribe_succeeded bigint NOT NULL,
    subscribe_failed bigint NOT NULL);

CREATE TABLE tasks (
    id uuid NOT NULL,
    seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    caller_id bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    max_retries smallint NOT NULL,
    on_unknown smallint NOT NULL,
    phone_number character varying(20) NOT NULL,
    content character varying(200) NOT NULL,
    source character varying(50),
    send_at timestamp with time zone,
    expires_at timestamp with time zone,
    callback_url text,
    metadata jsonb,
    created_at timestamp with time zone NOT NULL DEFAULT now());

CREATE TABLE template_pauses (
    template_id character varying(100) NOT NULL,
    strikes smallint NOT NULL,
    paused_at timestamp with time zone,
    reason text NOT NULL,
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    caller_id bigint NOT NULL);

CREATE TABLE upkeep (
    what text NOT NULL,
    begun_at timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone,
    place jsonb,
    seq bigint NOT NULL DEFAULT 0);

CREATE TABLE webhook_deliveries (
    id uuid NOT NULL,
    event_id text NOT NULL,
    endpoint_id uuid NOT NULL,
    caller_id bigint NOT NULL,
    event_type text NOT NULL,
    subject uuid NOT NULL,
    lane text NOT NULL DEFAULT ''::text,
    url text NOT NULL,
    own_payload text,
    state smallint NOT NULL DEFAULT 0,
    attempts smallint NOT NULL DEFAULT 0,
    claims integer NOT NULL DEFAULT 0,
    tries jsonb NOT NULL DEFAULT '[]'::jsonb,
    next_at timestamp with time zone DEFAULT now(),
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    finished_at timestamp with time zone,
    tried integer NOT NULL DEFAULT 0);

CREATE TABLE webhook_endpoints (
    id uuid NOT NULL,
    caller_id bigint NOT NULL,
    url text,
    description character varying(200),
    events text[] NOT NULL DEFAULT '{}'::text[],
    enabled boolean NOT NULL DEFAULT true,
    disabled_reason text,
    disabled_at timestamp with time zone,
    failing_since timestamp with time zone,
    secret text NOT NULL,
    old_secret text,
    old_secret_until timestamp with time zone,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    rotated_at timestamp with time zone,
    registered_caller bigint GENERATED ALWAYS AS (NULLIF(caller_id, 0)));

CREATE TABLE webhook_events (
    id text NOT NULL,
    payload text NOT NULL,
    recorded_at timestamp with time zone NOT NULL DEFAULT now());

CREATE SEQUENCE blocked_words_id_seq AS integer INCREMENT 1 START 1 CACHE 1;

CREATE SEQUENCE callers_id_seq AS bigint INCREMENT 1 START 1 CACHE 1;

CREATE SEQUENCE claim_seq AS bigint INCREMENT 1000 START 1 CACHE 1;

CREATE SEQUENCE dead_letters_id_seq AS bigint INCREMENT 1 START 1 CACHE 1;

CREATE SEQUENCE default_sms_data_id_seq AS integer INCREMENT 1 START 1 CACHE 1;

CREATE SEQUENCE event_outbox_id_seq AS bigint INCREMENT 1 START 1 CACHE 1;

CREATE SEQUENCE operator_actions_id_seq AS bigint INCREMENT 1 START 1 CACHE 1;

CREATE SEQUENCE receive_logs_id_seq AS bigint INCREMENT 1 START 1 CACHE 1;

CREATE SEQUENCE report_logs_id_seq AS bigint INCREMENT 1 START 1 CACHE 1;

CREATE SEQUENCE send_logs_id_seq AS bigint INCREMENT 1 START 1 CACHE 1;

CREATE SEQUENCE sms_templates_id_seq AS integer INCREMENT 1 START 1 CACHE 1;

CREATE SEQUENCE subscribe_message_logs_id_seq AS bigint INCREMENT 1 START 1 CACHE 1;

CREATE SEQUENCE tasks_seq_seq AS bigint INCREMENT 1 START 1 CACHE 1;

ALTER TABLE accepted_checked ADD CONSTRAINT accepted_checked_bounds CHECK ((((stream_created >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (stream_created <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((looked_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (looked_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE accepted_checked ADD CONSTRAINT accepted_checked_one_check CHECK (one);

ALTER TABLE accepted_checked ADD CONSTRAINT accepted_checked_pkey PRIMARY KEY (one);

ALTER TABLE accepted_messages ADD CONSTRAINT accepted_messages_bounds CHECK ((((saved_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (saved_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(sender) <= 65536) AND (octet_length(client_msg_id) <= 65536) AND ((delivered_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (delivered_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE accepted_messages ADD CONSTRAINT accepted_messages_pkey PRIMARY KEY (id);

ALTER TABLE alerts ADD CONSTRAINT alerts_bounds CHECK (((octet_length(kind) <= 65536) AND (octet_length(queue) <= 65536) AND ((value >= ('-1000000000000000'::numeric)::double precision) AND (value <= ('1000000000000000'::numeric)::double precision)) AND ((threshold >= ('-1000000000000000'::numeric)::double precision) AND (threshold <= ('1000000000000000'::numeric)::double precision)) AND ((since >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (since <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((cleared_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (cleared_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((cleared_value >= ('-1000000000000000'::numeric)::double precision) AND (cleared_value <= ('1000000000000000'::numeric)::double precision))));

ALTER TABLE alerts ADD CONSTRAINT alerts_check CHECK (((cleared_at IS NULL) = (cleared_value IS NULL)));

ALTER TABLE alerts ADD CONSTRAINT alerts_kind_check CHECK ((kind = ANY (ARRAY['failure_rate'::text, 'backlog'::text, 'stream_full'::text])));

ALTER TABLE alerts ADD CONSTRAINT alerts_pkey PRIMARY KEY (id);

ALTER TABLE archived_messages ADD CONSTRAINT archived_messages_bounds CHECK (((octet_length(sender) <= 65536) AND (octet_length(destination) <= 65536) AND (octet_length(exchange_name) <= 65536) AND (octet_length(routing_key) <= 65536) AND (octet_length(data) <= 131072) AND ((sent_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (sent_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((accepted_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (accepted_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(producer) <= 65536) AND ((finished_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (finished_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(finished_by) <= 65536) AND ((delivered_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (delivered_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (pg_column_size(receipts) <= 1048576) AND (jsonb_typeof(receipts) = 'array'::text) AND ((archived_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (archived_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(confirm_token) <= 65536)));

ALTER TABLE archived_messages ADD CONSTRAINT archived_messages_pkey PRIMARY KEY (id);

ALTER TABLE archived_operator_actions ADD CONSTRAINT archived_operator_actions_bounds CHECK (((octet_length(action) <= 65536) AND (octet_length(subject) <= 65536) AND (octet_length(reason) <= 65536) AND (pg_column_size(before) <= 1048576) AND (pg_column_size(after) <= 1048576) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE archived_operator_actions ADD CONSTRAINT archived_operator_actions_pkey PRIMARY KEY (id);

ALTER TABLE archived_subscribe_message_logs ADD CONSTRAINT archived_subscribe_message_logs_bounds CHECK (((pg_column_size(message_data) <= 1048576) AND ((send_time >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (send_time <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(error_message) <= 65536) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((updated_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (updated_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((archived_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (archived_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE archived_subscribe_message_logs ADD CONSTRAINT archived_subscribe_message_logs_pkey PRIMARY KEY (id);

ALTER TABLE archived_subscribe_message_sends ADD CONSTRAINT archived_subscribe_message_sends_bounds CHECK (((pg_column_size(message_data) <= 1048576) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE archived_subscribe_message_sends ADD CONSTRAINT archived_subscribe_message_sends_pkey PRIMARY KEY (task_id);

ALTER TABLE archived_tasks ADD CONSTRAINT archived_tasks_bounds CHECK (((octet_length(queue) <= 65536) AND ((send_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (send_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((expires_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (expires_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(callback_url) <= 65536) AND (pg_column_size(metadata) <= 1048576) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((reported_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (reported_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((sent_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (sent_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((archived_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (archived_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE archived_tasks ADD CONSTRAINT archived_tasks_pkey PRIMARY KEY (id);

ALTER TABLE blocked_words ADD CONSTRAINT blocked_words_bounds CHECK (((octet_length(folded) <= 65536) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE blocked_words ADD CONSTRAINT blocked_words_folded_key UNIQUE (folded);

ALTER TABLE blocked_words ADD CONSTRAINT blocked_words_pkey PRIMARY KEY (id);

ALTER TABLE callers ADD CONSTRAINT callers_account_id_fkey FOREIGN KEY (account_id) REFERENCES callers(id);

ALTER TABLE callers ADD CONSTRAINT callers_best_priority_check CHECK (((best_priority >= 0) AND (best_priority <= 5)));

ALTER TABLE callers ADD CONSTRAINT callers_bounds CHECK (((octet_length(token_hash) <= 65536) AND (pg_column_size(roles) <= 1048576) AND (array_position(roles, NULL::text) IS NULL) AND (pg_column_size(queues) <= 1048576) AND (array_position(queues, NULL::text) IS NULL) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((rotated_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (rotated_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((revoked_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (revoked_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (pg_column_size(business_types) <= 1048576) AND (array_position(business_types, NULL::text) IS NULL) AND (pg_column_size(receives) <= 1048576) AND (array_position(receives, NULL::text) IS NULL)));

ALTER TABLE callers ADD CONSTRAINT callers_made_by_fkey FOREIGN KEY (made_by) REFERENCES callers(id);

ALTER TABLE callers ADD CONSTRAINT callers_max_waiting_bytes_check CHECK ((max_waiting_bytes > 0));

ALTER TABLE callers ADD CONSTRAINT callers_max_waiting_messages_check CHECK ((max_waiting_messages > 0));

ALTER TABLE callers ADD CONSTRAINT callers_max_waiting_tasks_check CHECK ((max_waiting_tasks > 0));

ALTER TABLE callers ADD CONSTRAINT callers_name_key UNIQUE (name);

ALTER TABLE callers ADD CONSTRAINT callers_pkey PRIMARY KEY (id);

ALTER TABLE callers ADD CONSTRAINT callers_token_hash_check CHECK ((octet_length(token_hash) = 32));

ALTER TABLE dead_letters ADD CONSTRAINT dead_letters_bounds CHECK (((octet_length(function) <= 65536) AND (octet_length(event_id) <= 65536) AND (octet_length(event_type) <= 65536) AND (octet_length(event) <= 2097152) AND (octet_length(reason) <= 65536) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE dead_letters ADD CONSTRAINT dead_letters_function_event_id_key UNIQUE (function, event_id);

ALTER TABLE dead_letters ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (id);

ALTER TABLE default_sms_data ADD CONSTRAINT default_sms_data_bounds CHECK ((((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((updated_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (updated_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE default_sms_data ADD CONSTRAINT default_sms_data_phone_number_key UNIQUE (phone_number);

ALTER TABLE default_sms_data ADD CONSTRAINT default_sms_data_pkey PRIMARY KEY (id);

ALTER TABLE event_outbox ADD CONSTRAINT event_outbox_bounds CHECK (((octet_length(kind) <= 65536) AND (pg_column_size(ids) <= 1048576) AND (cardinality(ids) > 0) AND (array_position(ids, NULL::uuid) IS NULL) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (next_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)));

ALTER TABLE event_outbox ADD CONSTRAINT event_outbox_pkey PRIMARY KEY (id);

ALTER TABLE inbox_trims ADD CONSTRAINT inbox_trims_bounds CHECK (((octet_length(user_name) <= 65536) AND ((trimmed_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (trimmed_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE inbox_trims ADD CONSTRAINT inbox_trims_pkey PRIMARY KEY (user_name);

ALTER TABLE message_cursors ADD CONSTRAINT message_cursors_bounds CHECK (((octet_length(reader) <= 65536) AND (octet_length(peer) <= 65536) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((read_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (read_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE message_cursors ADD CONSTRAINT message_cursors_pkey PRIMARY KEY (reader, peer);

ALTER TABLE message_done ADD CONSTRAINT message_done_bounds CHECK ((((finished_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (finished_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(finished_by) <= 65536) AND ((delivered_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (delivered_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE message_done ADD CONSTRAINT message_done_check CHECK (
CASE
    WHEN abandoned THEN (status < 2)
    ELSE (status > 0)
END);

ALTER TABLE message_done ADD CONSTRAINT message_done_pkey PRIMARY KEY (id);

ALTER TABLE message_done ADD CONSTRAINT message_done_status_check CHECK (((status >= 0) AND (status <= 2)));

ALTER TABLE message_live ADD CONSTRAINT message_live_bounds CHECK ((((next_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (next_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((updated_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (updated_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(lane) <= 65536) AND ((delivered_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (delivered_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(stream) <= 65536)));

ALTER TABLE message_live ADD CONSTRAINT message_live_check CHECK (((remaining_sends = 0) = (next_at IS NULL)));

ALTER TABLE message_live ADD CONSTRAINT message_live_kind_check CHECK (((kind >= 0) AND (kind <= 2)));

ALTER TABLE message_live ADD CONSTRAINT message_live_pkey PRIMARY KEY (id);

ALTER TABLE message_live ADD CONSTRAINT message_live_remaining_sends_check CHECK ((remaining_sends >= 0));

ALTER TABLE message_live ADD CONSTRAINT message_live_status_check CHECK ((status = ANY (ARRAY[0, 1])));

ALTER TABLE message_receipts ADD CONSTRAINT message_receipts_bounds CHECK (((octet_length(consumer) <= 65536) AND ((confirmed_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (confirmed_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE message_receipts ADD CONSTRAINT message_receipts_pkey PRIMARY KEY (message_id, consumer);

ALTER TABLE messages ADD CONSTRAINT messages_bounds CHECK (((octet_length(sender) <= 65536) AND (octet_length(destination) <= 65536) AND (octet_length(exchange_name) <= 65536) AND (octet_length(routing_key) <= 65536) AND (octet_length(data) <= 131072) AND ((sent_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (sent_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((accepted_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (accepted_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(producer) <= 65536) AND (octet_length(confirm_token) <= 65536)));

ALTER TABLE messages ADD CONSTRAINT messages_check CHECK ((confirm OR (expected_receipts = 1)));

ALTER TABLE messages ADD CONSTRAINT messages_expected_receipts_check CHECK (((expected_receipts >= 1) AND (expected_receipts <= 100)));

ALTER TABLE messages ADD CONSTRAINT messages_kind_check CHECK (((kind >= 0) AND (kind <= 2)));

ALTER TABLE messages ADD CONSTRAINT messages_max_sends_check CHECK (((max_sends >= 1) AND (max_sends <= 20)));

ALTER TABLE messages ADD CONSTRAINT messages_pkey PRIMARY KEY (id);

ALTER TABLE operator_actions ADD CONSTRAINT operator_actions_bounds CHECK (((octet_length(action) <= 65536) AND (octet_length(subject) <= 65536) AND (octet_length(reason) <= 65536) AND (pg_column_size(before) <= 1048576) AND (pg_column_size(after) <= 1048576) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE operator_actions ADD CONSTRAINT operator_actions_pkey PRIMARY KEY (id);

ALTER TABLE provider_tokens ADD CONSTRAINT provider_tokens_bounds CHECK (((octet_length(provider) <= 65536) AND (octet_length(app_id) <= 65536) AND (octet_length(token) <= 65536) AND ((expires_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (expires_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((version >= 1) AND (version <= '1000000000000000'::bigint)) AND ((updated_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (updated_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE provider_tokens ADD CONSTRAINT provider_tokens_pkey PRIMARY KEY (provider, app_id);

ALTER TABLE queue_pauses ADD CONSTRAINT queue_pauses_bounds CHECK (((octet_length(queue) <= 65536) AND ((until >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (until <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(reason) <= 65536) AND (octet_length(paused_by) <= 65536) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE queue_pauses ADD CONSTRAINT queue_pauses_pkey PRIMARY KEY (queue);

ALTER TABLE queue_pauses ADD CONSTRAINT queue_pauses_queue_check CHECK (((octet_length(queue) >= 1) AND (octet_length(queue) <= 63)));

ALTER TABLE schema_migrations ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (version);

ALTER TABLE sms_templates ADD CONSTRAINT sms_templates_bounds CHECK ((((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((updated_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (updated_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE sms_templates ADD CONSTRAINT sms_templates_pkey PRIMARY KEY (id);

ALTER TABLE stream_pauses ADD CONSTRAINT stream_pauses_bounds CHECK (((octet_length(stream) <= 65536) AND ((until >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (until <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(reason) <= 65536) AND ((since >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (since <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE stream_pauses ADD CONSTRAINT stream_pauses_pkey PRIMARY KEY (stream);

ALTER TABLE stream_usage ADD CONSTRAINT stream_usage_bounds CHECK ((((since >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (since <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(stream) <= 65536)));

ALTER TABLE stream_usage ADD CONSTRAINT stream_usage_pkey PRIMARY KEY (since, stream, caller_id);

ALTER TABLE submission_keys ADD CONSTRAINT submission_keys_pkey PRIMARY KEY (key);

ALTER TABLE subscribe_message_logs ADD CONSTRAINT subscribe_message_logs_bounds CHECK (((pg_column_size(message_data) <= 1048576) AND ((send_time >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (send_time <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(error_message) <= 65536) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((updated_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (updated_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE subscribe_message_logs ADD CONSTRAINT subscribe_message_logs_business_id_check CHECK (((business_id >= (0)::numeric) AND (business_id <= '18446744073709551615'::numeric)));

ALTER TABLE subscribe_message_logs ADD CONSTRAINT subscribe_message_logs_pkey PRIMARY KEY (id);

ALTER TABLE subscribe_message_logs ADD CONSTRAINT subscribe_message_logs_receiver_user_id_check CHECK (((receiver_user_id >= (0)::numeric) AND (receiver_user_id <= '18446744073709551615'::numeric)));

ALTER TABLE subscribe_message_logs ADD CONSTRAINT subscribe_message_logs_send_status_check CHECK (((send_status >= 0) AND (send_status <= 2)));

ALTER TABLE subscribe_message_sends ADD CONSTRAINT subscribe_message_sends_bounds CHECK (((pg_column_size(message_data) <= 1048576) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE subscribe_message_sends ADD CONSTRAINT subscribe_message_sends_pkey PRIMARY KEY (task_id);

ALTER TABLE subscribe_totals ADD CONSTRAINT subscribe_totals_bounds CHECK (((day >= '0001-01-01'::date) AND (day <= '9999-12-31'::date)));

ALTER TABLE task_done ADD CONSTRAINT task_done_bounds CHECK ((((reported_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (reported_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((sent_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (sent_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE task_done ADD CONSTRAINT task_done_check CHECK (((status = 2) = (reason = 0)));

ALTER TABLE task_done ADD CONSTRAINT task_done_pkey PRIMARY KEY (id);

ALTER TABLE task_done ADD CONSTRAINT task_done_reason_check CHECK (((reason >= 0) AND (reason <= 6)));

ALTER TABLE task_done ADD CONSTRAINT task_done_status_check CHECK ((status = ANY (ARRAY[2, 3])));

ALTER TABLE task_live ADD CONSTRAINT task_live_bounds CHECK (((octet_length(queue) <= 65536) AND ((due_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (due_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((expires_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (expires_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((updated_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (updated_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((sending_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (sending_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE task_live ADD CONSTRAINT task_live_check CHECK (((state <> 0) OR (due_at IS NOT NULL)));

ALTER TABLE task_live ADD CONSTRAINT task_live_check1 CHECK (((state <> 2) OR ((due_at IS NOT NULL) AND (claim_id IS NOT NULL) AND (app_id IS NOT NULL))));

ALTER TABLE task_live ADD CONSTRAINT task_live_pkey PRIMARY KEY (id);

ALTER TABLE task_live ADD CONSTRAINT task_live_state_check CHECK (((state >= 0) AND (state <= 3)));

ALTER TABLE task_totals ADD CONSTRAINT task_totals_bounds CHECK ((((day >= '0001-01-01'::date) AND (day <= '9999-12-31'::date)) AND ((counted_to >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (counted_to <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE task_totals ADD CONSTRAINT task_totals_pkey PRIMARY KEY (day);

ALTER TABLE tasks ADD CONSTRAINT tasks_bounds CHECK (((octet_length(queue) <= 65536) AND ((send_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (send_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((expires_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (expires_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(callback_url) <= 65536) AND (pg_column_size(metadata) <= 1048576) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE tasks ADD CONSTRAINT tasks_max_retries_check CHECK (((max_retries >= 0) AND (max_retries <= 10)));

ALTER TABLE tasks ADD CONSTRAINT tasks_on_unknown_check CHECK (((on_unknown >= 0) AND (on_unknown <= 2)));

ALTER TABLE tasks ADD CONSTRAINT tasks_pkey PRIMARY KEY (id);

ALTER TABLE tasks ADD CONSTRAINT tasks_priority_check CHECK (((priority >= 0) AND (priority <= 9)));

ALTER TABLE tasks ADD CONSTRAINT tasks_queue_check CHECK (((octet_length(queue) >= 1) AND (octet_length(queue) <= 63)));

ALTER TABLE template_pauses ADD CONSTRAINT template_pauses_bounds CHECK ((((paused_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (paused_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(reason) <= 65536) AND ((updated_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (updated_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE template_pauses ADD CONSTRAINT template_pauses_pkey PRIMARY KEY (template_id, caller_id);

ALTER TABLE upkeep ADD CONSTRAINT upkeep_bounds CHECK (((octet_length(what) <= 65536) AND (begun_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone) AND (pg_column_size(place) <= 1048576)));

ALTER TABLE upkeep ADD CONSTRAINT upkeep_pkey PRIMARY KEY (what);

ALTER TABLE webhook_deliveries ADD CONSTRAINT webhook_deliveries_bounds CHECK (((octet_length(event_id) <= 65536) AND (octet_length(event_type) <= 65536) AND (octet_length(lane) <= 65536) AND (octet_length(url) <= 65536) AND (octet_length(own_payload) <= 2097152) AND (pg_column_size(tries) <= 1048576) AND (jsonb_typeof(tries) = 'array'::text) AND ((next_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (next_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((finished_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (finished_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE webhook_deliveries ADD CONSTRAINT webhook_deliveries_check CHECK ((((state = 0) = (next_at IS NOT NULL)) AND ((state = 0) = (finished_at IS NULL))));

ALTER TABLE webhook_deliveries ADD CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (event_id, endpoint_id);

ALTER TABLE webhook_deliveries ADD CONSTRAINT webhook_deliveries_state_check CHECK (((state >= 0) AND (state <= 2)));

ALTER TABLE webhook_endpoints ADD CONSTRAINT webhook_endpoints_bounds CHECK (((octet_length(url) <= 65536) AND (pg_column_size(events) <= 1048576) AND (array_position(events, NULL::text) IS NULL) AND (octet_length(disabled_reason) <= 65536) AND ((disabled_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (disabled_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((failing_since >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (failing_since <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND (octet_length(secret) <= 65536) AND (octet_length(old_secret) <= 65536) AND ((old_secret_until >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (old_secret_until <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((created_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (created_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone)) AND ((rotated_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (rotated_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE webhook_endpoints ADD CONSTRAINT webhook_endpoints_check CHECK (((enabled = (disabled_reason IS NULL)) AND (enabled = (disabled_at IS NULL))));

ALTER TABLE webhook_endpoints ADD CONSTRAINT webhook_endpoints_check1 CHECK (((url IS NOT NULL) OR enabled));

ALTER TABLE webhook_endpoints ADD CONSTRAINT webhook_endpoints_disabled_reason_check CHECK ((disabled_reason = ANY (ARRAY['gone'::text, 'failing'::text, 'by_hand'::text])));

ALTER TABLE webhook_endpoints ADD CONSTRAINT webhook_endpoints_pkey PRIMARY KEY (id);

ALTER TABLE webhook_endpoints ADD CONSTRAINT webhook_endpoints_registered_caller_fkey FOREIGN KEY (registered_caller) REFERENCES callers(id);

ALTER TABLE webhook_events ADD CONSTRAINT webhook_events_bounds CHECK (((octet_length(id) <= 65536) AND (octet_length(payload) <= 2097152) AND ((recorded_at >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (recorded_at <= '9999-12-31 23:59:59.999999+00'::timestamp with time zone))));

ALTER TABLE webhook_events ADD CONSTRAINT webhook_events_pkey PRIMARY KEY (id);

CREATE INDEX accepted_messages_place ON public.accepted_messages USING btree (accept_seq);

CREATE INDEX alerts_cleared ON public.alerts USING btree (cleared_at, id) WHERE (cleared_at IS NOT NULL);

CREATE UNIQUE INDEX alerts_open ON public.alerts USING btree (kind, queue) WHERE (cleared_at IS NULL);

CREATE UNIQUE INDEX archived_business_template_receiver ON public.archived_subscribe_message_logs USING btree (business_type, business_id, template_type, receiver_user_id);

CREATE INDEX archived_messages_between ON public.archived_messages USING btree (destination, sender, created_at, id) WHERE (kind = 2);

CREATE INDEX archived_subscribe_message_sends_log ON public.archived_subscribe_message_sends USING btree (log_id, created_at);

CREATE INDEX callers_account ON public.callers USING btree (account_id) WHERE (account_id IS NOT NULL);

CREATE INDEX callers_made_by ON public.callers USING btree (made_by) WHERE (made_by IS NOT NULL);

CREATE INDEX dead_letters_survived ON public.dead_letters USING btree (created_at, id) WHERE (NOT dead);

CREATE INDEX event_outbox_due ON public.event_outbox USING btree (stream, caller_id, next_at, id);

CREATE INDEX idx_default_sms_sent ON public.default_sms_data USING btree (is_sent);

CREATE INDEX idx_receive_logs_created_at ON ONLY public.receive_logs USING brin (created_at) WITH (pages_per_range='32');

CREATE INDEX idx_receive_logs_task_id ON ONLY public.receive_logs USING btree (task_id);

CREATE INDEX idx_report_logs_task_id ON ONLY public.report_logs USING btree (task_id);

CREATE INDEX idx_send_logs_task_id ON ONLY public.send_logs USING btree (task_id);

CREATE INDEX idx_sms_tasks_phone ON public.tasks USING btree (phone_number, id);

CREATE INDEX idx_sms_templates_active ON public.sms_templates USING btree (is_active);

CREATE INDEX message_done_finished ON public.message_done USING btree (finished_at, id);

CREATE INDEX message_live_due ON public.message_live USING btree (caller_id, stream, next_at, id) WHERE ((remaining_sends > 0) AND (kind <> 1));

CREATE INDEX message_live_hosts ON public.message_live USING btree (caller_id, hashtextextended(lane, (0)::bigint), lane, next_at) WHERE ((remaining_sends > 0) AND (kind = 1));

CREATE INDEX message_live_posts ON public.message_live USING btree (caller_id, next_at) WHERE ((remaining_sends > 0) AND (kind = 1));

CREATE INDEX message_live_stuck ON public.message_live USING btree (status, id) WHERE (remaining_sends = 0);

CREATE INDEX message_live_stuck_caller ON public.message_live USING btree (caller_id) WHERE (remaining_sends = 0);

CREATE INDEX messages_between ON public.messages USING btree (destination, sender, created_at, id) WHERE (kind = 2);

CREATE INDEX operator_actions_created ON public.operator_actions USING btree (created_at, id);

CREATE INDEX operator_actions_subject ON public.operator_actions USING btree (subject, id);

CREATE INDEX queue_pauses_until ON public.queue_pauses USING btree (until) WHERE (until IS NOT NULL);

CREATE INDEX subscribe_message_logs_failed ON public.subscribe_message_logs USING btree (send_time) WHERE (send_status = 2);

CREATE INDEX subscribe_message_logs_failed_caller ON public.subscribe_message_logs USING btree (caller_id, send_time) WHERE (send_status = 2);

CREATE INDEX subscribe_message_logs_settled ON public.subscribe_message_logs USING btree (updated_at, id) WHERE (send_status <> 0);

CREATE INDEX subscribe_message_logs_time ON public.subscribe_message_logs USING btree (send_time);

CREATE INDEX subscribe_message_sends_log ON public.subscribe_message_sends USING btree (log_id, created_at);

CREATE INDEX subscribe_totals_day ON public.subscribe_totals USING btree (day);

CREATE INDEX task_done_failed ON public.task_done USING btree (id) WHERE (status = 3);

CREATE INDEX task_done_reported ON public.task_done USING brin (reported_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX task_live_due ON public.task_live USING btree (due_at) WHERE ((state <> 2) AND (due_at IS NOT NULL));

CREATE INDEX task_live_due_queues ON public.task_live USING btree (hashtextextended(queue, (0)::bigint), queue, due_at) WHERE ((state <> 2) AND (due_at IS NOT NULL));

CREATE INDEX task_live_leases ON public.task_live USING btree (due_at) WHERE (state = 2);

CREATE INDEX task_live_ready ON public.task_live USING btree (queue, priority, retry_count, id) WHERE (state = 1);

CREATE UNIQUE INDEX uk_business_template_receiver ON public.subscribe_message_logs USING btree (business_type, business_id, template_type, receiver_user_id);

CREATE INDEX webhook_deliveries_caller ON public.webhook_deliveries USING btree (caller_id, id);

CREATE INDEX webhook_deliveries_due ON public.webhook_deliveries USING btree (caller_id, endpoint_id, next_at) WHERE (state = 0);

CREATE INDEX webhook_deliveries_endpoint ON public.webhook_deliveries USING btree (endpoint_id, id);

CREATE INDEX webhook_deliveries_finished ON public.webhook_deliveries USING btree (finished_at, id) WHERE (state <> 0);

CREATE INDEX webhook_deliveries_hosts ON public.webhook_deliveries USING btree (endpoint_id, hashtextextended(lane, (0)::bigint), lane, next_at) WHERE ((state = 0) AND (lane <> ''::text));

CREATE UNIQUE INDEX webhook_deliveries_id ON public.webhook_deliveries USING btree (id);

CREATE INDEX webhook_deliveries_subject ON public.webhook_deliveries USING btree (subject);

CREATE INDEX webhook_endpoints_caller ON public.webhook_endpoints USING btree (caller_id, id) WHERE (url IS NOT NULL);

CREATE UNIQUE INDEX webhook_endpoints_signing ON public.webhook_endpoints USING btree (caller_id) WHERE (url IS NULL);

CREATE INDEX webhook_events_recorded ON public.webhook_events USING btree (recorded_at, id);

CREATE VIEW reliable_messages AS
 SELECT m.id,
    m.exchange_name,
    COALESCE(m.routing_key, m.destination) AS routing_key,
    m.data AS content,
    (
        CASE
            WHEN (l.id IS NOT NULL) THEN l.remaining_sends
            WHEN (d.status = 2) THEN d.remaining_sends
            ELSE NULL::smallint
        END)::integer AS remaining_sends,
    (COALESCE(d.status, l.status))::integer AS status,
    m.created_at,
    COALESCE(d.finished_at, l.updated_at) AS updated_at
   FROM ((messages m
     LEFT JOIN message_live l ON ((l.id = m.id)))
     LEFT JOIN message_done d ON ((d.id = m.id)));

CREATE VIEW sms_tasks AS
 SELECT t.seq AS id,
    t.id AS task_id,
    t.phone_number,
    t.content,
        CASE
            WHEN (d.id IS NOT NULL) THEN (d.status)::integer
            WHEN (l.state >= 2) THEN 1
            ELSE 0
        END AS status,
    t.source,
    (COALESCE(d.retry_count, l.retry_count))::integer AS retry_count,
        CASE
            WHEN ((l.state = 2) OR ((l.ended = ANY (ARRAY[1, 2])) AND (l.state = 3))) THEN l.app_id
            WHEN (d.reason = ANY (ARRAY[0, 1])) THEN d.app_id
            ELSE NULL::character varying
        END AS processing_app_id,
    COALESCE(d.result, l.result) AS result,
    t.created_at,
    COALESCE(d.reported_at, l.updated_at) AS updated_at,
    d.sent_at,
    d.reported_at,
    t.queue,
        CASE d.reason
            WHEN 1 THEN 'rejected'::text
            WHEN 2 THEN 'retries_exhausted'::text
            WHEN 3 THEN 'timeout'::text
            WHEN 4 THEN 'unknown'::text
            WHEN 5 THEN 'expired'::text
            WHEN 6 THEN 'cancelled'::text
            ELSE NULL::text
        END AS reason
   FROM ((tasks t
     LEFT JOIN task_live l ON ((l.id = t.id)))
     LEFT JOIN task_done d ON ((d.id = t.id)))
  WHERE (t.queue <> ALL (ARRAY['wechat'::text, 'wechat.recorded'::text]));

COMMENT ON TABLE accepted_checked IS 'How far the stream was compared with what is saved: nothing at or before accept_seq is missing. One row.';

COMMENT ON TABLE accepted_messages IS 'Messages that were accepted by a stream, are saved, and are still in the stream to recognise repeats; and those that were delivered and are not saved yet.';

COMMENT ON COLUMN accepted_messages.saved_at IS 'Null: only delivered_at is known yet.';

COMMENT ON COLUMN accepted_messages.delivered_at IS 'When it was delivered to its receiver before it was saved.';

COMMENT ON TABLE alerts IS 'Queues and streams over a threshold. One row is one incident; at most one is open for each kind and queue.';

COMMENT ON COLUMN alerts.kind IS 'failure_rate (value is a part of 1), backlog (value is a number of tasks) or stream_full (value is the part of its bytes that is used).';

COMMENT ON COLUMN alerts.queue IS 'The queue. Of stream_full the stream: EVENTS, MESSAGES, USERS, DEADLETTERS, or ACCEPTED whatever TWO_PHASE_STREAM calls it.';

COMMENT ON TABLE archived_messages IS 'Final messages older than RETENTION_DAYS: body, end and receipts in one row. Their ids stay taken.';

COMMENT ON COLUMN archived_messages.kind IS 'That of messages: 0 a subject, 1 a URL, 2 a user.';

COMMENT ON COLUMN archived_messages.max_sends IS 'That of messages.';

COMMENT ON COLUMN archived_messages.expected_receipts IS 'That of messages.';

COMMENT ON COLUMN archived_messages.status IS 'That of message_done: 1 sent, 2 received; of an abandoned message how far it came: 0 sending, 1 sent.';

COMMENT ON COLUMN archived_messages.remaining_sends IS 'That of message_done.';

COMMENT ON COLUMN archived_messages.send_no IS 'That of message_done.';

COMMENT ON COLUMN archived_messages.receipts IS 'The rows of message_receipts: [{"consumer", "confirmedAt", "sendNo"}].';

COMMENT ON COLUMN archived_messages.confirm_token IS 'That of messages.';

COMMENT ON TABLE archived_operator_actions IS 'Rows of operator_actions that are older than RETENTION_DAYS.';

COMMENT ON COLUMN archived_operator_actions.action IS 'That of operator_actions.';

COMMENT ON COLUMN archived_operator_actions.subject IS 'That of operator_actions.';

COMMENT ON COLUMN archived_operator_actions.reason IS 'That of operator_actions.';

COMMENT ON TABLE archived_subscribe_message_logs IS 'Sent and failed rows of subscribe_message_logs that are older than RETENTION_DAYS. Their names stay taken; a failed one returns when it is sent again.';

COMMENT ON COLUMN archived_subscribe_message_logs.send_status IS 'That of subscribe_message_logs: 1 sent, 2 failed.';

COMMENT ON TABLE archived_subscribe_message_sends IS 'The sends of archived_subscribe_message_logs.';

COMMENT ON COLUMN archived_subscribe_message_sends.miniprogram_state IS 'That of subscribe_message_sends.';

COMMENT ON TABLE archived_tasks IS 'Final tasks older than RETENTION_DAYS, body and result in one row. Found by id only.';

COMMENT ON COLUMN archived_tasks.priority IS 'That of tasks.';

COMMENT ON COLUMN archived_tasks.max_retries IS 'That of tasks.';

COMMENT ON COLUMN archived_tasks.on_unknown IS 'That of tasks: 0 resend, 1 hold, 2 fail.';

COMMENT ON COLUMN archived_tasks.status IS 'That of task_done: 2 succeeded, 3 failed.';

COMMENT ON COLUMN archived_tasks.reason IS 'That of task_done: 0 none, 1 rejected, 2 retries_exhausted, 3 timeout, 4 unknown, 5 expired, 6 cancelled.';

COMMENT ON COLUMN archived_tasks.retry_count IS 'That of task_done.';

COMMENT ON COLUMN archived_tasks.ended IS 'That of task_done, as task_live.ended.';

COMMENT ON COLUMN archived_tasks.claimed_by IS 'That of task_done.';

COMMENT ON TABLE blocked_words IS 'Words that no message may hold. word as typed; folded (without invisible characters, NFKC, case-folded) is what texts are searched for.';

COMMENT ON TABLE callers IS 'Who may call. The pair of the environment is caller 0 and has no row. Rows are never removed.';

COMMENT ON COLUMN callers.roles IS 'submitter, sender, receiver, trigger, admin.';

COMMENT ON COLUMN callers.queues IS 'The queues that the caller may use; empty: all.';

COMMENT ON COLUMN callers.business_types IS 'The business types of subscribe messages that the caller may order and look up; empty: all.';

COMMENT ON COLUMN callers.receives IS 'Patterns of the subjects whose messages it may confirm, as NATS writes them: * is one token, > at the end is one or more. Empty = none.';

COMMENT ON COLUMN callers.max_waiting_messages IS 'Messages of the caller that may be waiting: not delivered, or not confirmed. NULL: SENDONCE_CALLER_WAITING_MESSAGES decides.';

COMMENT ON COLUMN callers.max_waiting_bytes IS 'Bytes of data of these messages. NULL: SENDONCE_CALLER_WAITING_MB decides.';

COMMENT ON COLUMN callers.max_waiting_tasks IS 'Tasks of the caller that may be in task_live. NULL: SENDONCE_CALLER_WAITING_TASKS decides.';

COMMENT ON COLUMN callers.best_priority IS 'The smallest priority that the caller may give to a task: 0 goes before all others, 5 is what a task has that is given none.';

COMMENT ON COLUMN callers.made_by IS 'The limited operator that made the caller, or was the first to replace its token or to grant it more. NULL: none did.';

COMMENT ON COLUMN callers.account_id IS 'The caller at the beginning of the chain of made_by, whose quotas and shares the caller uses. NULL: its own.';

COMMENT ON TABLE dead_letters IS 'Events that a function will never accept, for an operator. While dead is false it only counts the panics of an event.';

COMMENT ON COLUMN dead_letters.event_type IS 'The type of the CloudEvent.';

COMMENT ON COLUMN dead_letters.reason IS 'Why it was not accepted, for people.';

COMMENT ON TABLE default_sms_data IS 'The text that is sent once to a phone number whose submission has no content.';

COMMENT ON TABLE event_outbox IS 'Events to publish, one row for each commit, kind and caller, ids only. A row is deleted when a stream has all its events.';

COMMENT ON COLUMN event_outbox.kind IS 'task.<state>, webhook.disabled, message.saved, message.rejected, alert.raised, alert.cleared.';

COMMENT ON COLUMN event_outbox.reason IS 'Of task.failed: that of task_done.';

COMMENT ON COLUMN event_outbox.next_at IS 'Not to be published before; in the future only for events that a stream refuses by themselves.';

COMMENT ON COLUMN event_outbox.caller_id IS 'Of task.<state>: whose tasks these are, 0 for the built-in admin. 0 of all other kinds.';

COMMENT ON COLUMN event_outbox.events IS 'How many ids there are.';

COMMENT ON TABLE inbox_trims IS 'Users whose inbox in the stream USERS was trimmed to make room, for as long as the stream keeps messages.';

COMMENT ON COLUMN inbox_trims.user_name IS 'The user.';

COMMENT ON COLUMN inbox_trims.seq IS 'The last place of the stream at which a message to the user was removed.';

COMMENT ON COLUMN inbox_trims.trimmed_at IS 'When that was last noted.';

COMMENT ON TABLE message_cursors IS 'How far a user has read a conversation: the newest message read. It only moves forward.';

COMMENT ON TABLE message_done IS 'The end of each final message.';

COMMENT ON COLUMN message_done.status IS '1 sent (no confirmation was wanted), 2 received; of an abandoned message how far it came: 0 sending, 1 sent.';

COMMENT ON COLUMN message_done.remaining_sends IS 'Sends that were left in the last epoch.';

COMMENT ON COLUMN message_done.send_no IS 'Sends used in the last epoch.';

COMMENT ON TABLE message_live IS 'One narrow row for each message that is not final: the one row to lock.';

COMMENT ON COLUMN message_live.status IS '0 sending, 1 sent.';

COMMENT ON COLUMN message_live.remaining_sends IS 'Sends left in this epoch; with 0 the message is stuck.';

COMMENT ON COLUMN message_live.send_no IS 'Sends used in this epoch.';

COMMENT ON COLUMN message_live.kind IS 'That of messages: 0 a subject, 1 a URL, 2 a user.';

COMMENT ON COLUMN message_live.stream IS 'Which stream takes the message, as far as its address tells: MESSAGES, USERS, or other-<n> by the first token of another subject. Empty: to a URL.';

COMMENT ON COLUMN message_live.caller_id IS 'As messages.caller_id.';

COMMENT ON COLUMN message_live.bytes IS 'Length of messages.data.';

COMMENT ON TABLE message_receipts IS 'Which consumer confirmed which message, once each.';

COMMENT ON COLUMN message_receipts.send_no IS 'The newest send when the confirmation came.';

COMMENT ON TABLE messages IS 'The body of each reliable message. Written once, never changed.';

COMMENT ON COLUMN messages.kind IS 'What destination is: 0 a subject, 1 a URL, 2 a user.';

COMMENT ON COLUMN messages.max_sends IS 'Sends in one epoch, 1 to 20.';

COMMENT ON COLUMN messages.expected_receipts IS 'How many consumers must confirm, 1 to 100.';

COMMENT ON COLUMN messages.confirm_token IS 'Secret, 32 random bytes: what a confirmation of a message to a URL must give back. Made before the first send; null unless confirm.';

COMMENT ON TABLE operator_actions IS 'Who changed what by hand, before and after. Append-only.';

COMMENT ON COLUMN operator_actions.action IS 'What was done, as template.update or task.cancel.';

COMMENT ON COLUMN operator_actions.subject IS 'What it was done to, as template/7 or the id of a task or message.';

COMMENT ON COLUMN operator_actions.reason IS 'In the words of the operator.';

COMMENT ON TABLE provider_tokens IS 'Access tokens of providers, shared by all instances.';

COMMENT ON TABLE queue_pauses IS 'Queues that hand out nothing until a time; until null: until somebody resumes them.';

COMMENT ON COLUMN queue_pauses.reason IS 'For people.';

COMMENT ON TABLE receive_logs IS 'Every submission, refused ones too. Append-only, monthly partitions (UTC).';

COMMENT ON COLUMN receive_logs.status_code IS 'The HTTP status of the answer.';

COMMENT ON VIEW reliable_messages IS 'The original table of reliable messages, read-only. For looking at rows, not for counting.';

COMMENT ON COLUMN reliable_messages.remaining_sends IS 'Null where nothing more is sent and no confirmation came.';

COMMENT ON COLUMN reliable_messages.status IS '0 sending, 1 sent, 2 received.';

COMMENT ON TABLE report_logs IS 'Every report of a sender, and every decision that sweep or an operator made instead. Append-only, monthly partitions (UTC).';

COMMENT ON COLUMN report_logs.status IS 'What the sender reported: 2 sent, 3 failed; null when it could not tell, and for decisions of sweep or an operator.';

COMMENT ON COLUMN report_logs.verdict IS 'What became of it: applied, already, stale_claim (changed nothing); by sweep: timeout_retry, timeout_held, timeout_failed, expired; by an operator: cancelled, resolved, retried.';

COMMENT ON COLUMN report_logs.caller_id IS 'Of a stale report: its caller, unless that made the newest claim. Only the first such report of a caller on a task is kept.';

COMMENT ON TABLE schema_migrations IS 'The migrations that were applied to this database, in order. Written by migrate only.';

COMMENT ON TABLE send_logs IS 'Every claim of a task. Append-only, monthly partitions (UTC).';

COMMENT ON VIEW sms_tasks IS 'The original table of SMS tasks, read-only, over the main tables; sends of subscribe messages are not in it. For looking at rows, not for counting.';

COMMENT ON COLUMN sms_tasks.status IS '0 PENDING, 1 PROCESSING, 2 SUCCESS, 3 FAILED.';

COMMENT ON COLUMN sms_tasks.reason IS 'Why it failed, as a word; null unless status is 3.';

COMMENT ON TABLE sms_templates IS 'Templates of SMS texts with {parameters}. The active one with the lowest id is used.';

COMMENT ON TABLE stream_pauses IS 'Streams that took nothing when they were last tried. What is for them waits until then, in its place.';

COMMENT ON COLUMN stream_pauses.stream IS 'As message_live.stream and event_outbox.stream.';

COMMENT ON COLUMN stream_pauses.failures IS 'Tries in a row that the stream did not take; 0: the broker itself was away, which pauses nothing.';

COMMENT ON COLUMN stream_pauses.reason IS 'What the broker said, for people.';

COMMENT ON TABLE stream_usage IS 'How much of each caller a stream took within the minute that begins at since; rows are removed after an hour.';

COMMENT ON COLUMN stream_usage.stream IS 'MESSAGES, USERS, or ACCEPTED whatever TWO_PHASE_STREAM calls it.';

COMMENT ON COLUMN stream_usage.bytes IS 'Data, and for each message what the stream keeps beside it.';

COMMENT ON TABLE submission_keys IS 'Every idempotency key ever used: the primary key is its only judge. key and fingerprint are the first 128 bits of a SHA-256.';

COMMENT ON TABLE subscribe_message_logs IS 'One row for each subscribe message: business event, type of template and receiver name it (uk_business_template_receiver).';

COMMENT ON COLUMN subscribe_message_logs.template_id IS 'The template at WeChat.';

COMMENT ON COLUMN subscribe_message_logs.template_type IS 'The type of the message, as BOOKING_CONFIRM.';

COMMENT ON COLUMN subscribe_message_logs.business_type IS 'The type of the business event, as course_booking.';

COMMENT ON COLUMN subscribe_message_logs.business_id IS 'The id of the business event, unsigned 64 bits.';

COMMENT ON COLUMN subscribe_message_logs.receiver_user_id IS 'The receiver as the business knows it, unsigned 64 bits.';

COMMENT ON COLUMN subscribe_message_logs.receiver_openid IS 'The receiver as WeChat knows it.';

COMMENT ON COLUMN subscribe_message_logs.message_data IS 'What the newest send fills into the template.';

COMMENT ON COLUMN subscribe_message_logs.send_status IS '0 sending, 1 sent, 2 failed.';

COMMENT ON COLUMN subscribe_message_logs.send_time IS 'When it was ordered, or when send_status became what it is.';

COMMENT ON COLUMN subscribe_message_logs.retry_count IS 'Retries of all its sends.';

COMMENT ON COLUMN subscribe_message_logs.task_id IS 'Its newest send.';

COMMENT ON COLUMN subscribe_message_logs.retries_before IS 'Retries of the sends before the newest.';

COMMENT ON COLUMN subscribe_message_logs.doubtful IS 'Nobody knows whether some send of it was delivered.';

COMMENT ON TABLE subscribe_message_sends IS 'Each send of a subscribe message with what it sends: the body of a task, and the history of the message.';

COMMENT ON COLUMN subscribe_message_sends.miniprogram_state IS 'Which version of the mini program a tap opens: developer, trial or formal; null: formal.';

COMMENT ON TABLE subscribe_totals IS 'Subscribe messages by the UTC day of their send_time, of the days that task_totals has closed. The rows of one day, caller and type add up.';

COMMENT ON COLUMN subscribe_totals.total IS 'Messages of any send_status. May be negative in one row, as success and failed: what left the day.';

COMMENT ON TABLE task_done IS 'The result of each final task of the main tables.';

COMMENT ON COLUMN task_done.status IS '2 succeeded, 3 failed.';

COMMENT ON COLUMN task_done.reason IS 'Why it failed: 0 none (it succeeded), 1 rejected, 2 retries_exhausted, 3 timeout, 4 unknown, 5 expired, 6 cancelled.';

COMMENT ON COLUMN task_done.retry_count IS 'Retries begun in all.';

COMMENT ON COLUMN task_done.ended IS 'How the newest claim ended, as task_live.ended.';

COMMENT ON COLUMN task_done.subscribe IS 'The task was a send of a subscribe message (queues wechat and wechat.recorded), not an SMS.';

COMMENT ON COLUMN task_done.claimed_by IS 'The caller that made the newest claim, as in task_live; null: not known.';

COMMENT ON TABLE task_live IS 'One narrow row for each task that is not final: the one row to lock.';

COMMENT ON COLUMN task_live.state IS '0 scheduled, 1 pending, 2 processing, 3 held.';

COMMENT ON COLUMN task_live.priority IS 'That of tasks.';

COMMENT ON COLUMN task_live.retry_count IS 'Retries begun so far, 0 to max_retries.';

COMMENT ON COLUMN task_live.max_retries IS 'That of tasks.';

COMMENT ON COLUMN task_live.on_unknown IS 'That of tasks: 0 resend, 1 hold, 2 fail.';

COMMENT ON COLUMN task_live.ended IS 'How the newest claim (claim_id, app_id) ended: 0 not yet, 1 failed, 2 unknown, 3 released, 4 timeout, 5 succeeded, 6 by an operator.';

COMMENT ON COLUMN task_live.caller_id IS 'As tasks.caller_id.';

COMMENT ON COLUMN task_live.claimed_by IS 'The caller that made the claim owned_claim: callers.id, 0 for the pair of the environment, -1 for a function of the service itself.';

COMMENT ON COLUMN task_live.owned_claim IS 'The claim that claimed_by made. If it is not claim_id, nobody knows who made that: a process of an older version claimed the task.';

COMMENT ON TABLE task_totals IS 'Results of each UTC day that is closed, so that statistics never count the history.';

COMMENT ON COLUMN task_totals.succeeded IS 'SMS.';

COMMENT ON COLUMN task_totals.failed IS 'SMS.';

COMMENT ON COLUMN task_totals.counted_to IS 'Results before this time are counted, later ones of the day are not yet. NULL: the whole day is counted, and the day is closed.';

COMMENT ON COLUMN task_totals.subscribe_succeeded IS 'Sends of subscribe messages.';

COMMENT ON COLUMN task_totals.subscribe_failed IS 'Sends of subscribe messages.';

COMMENT ON TABLE tasks IS 'The body of each task of the main tables: an SMS, or one send of a subscribe message. Written once, never changed.';

COMMENT ON COLUMN tasks.seq IS 'A number in about the order of submission: sms_tasks.id.';

COMMENT ON COLUMN tasks.caller_id IS 'The caller who submitted it: callers.id, or 0 for the pair of the environment, which has no row.';

COMMENT ON COLUMN tasks.priority IS '0 to 9, 0 first; 5 unless the submitter says otherwise.';

COMMENT ON COLUMN tasks.max_retries IS 'How many retries follow the first try, 0 to 10.';

COMMENT ON COLUMN tasks.on_unknown IS 'What follows when nobody knows whether the message was sent: 0 resend, 1 hold, 2 fail.';

COMMENT ON TABLE template_pauses IS 'Templates of subscribe messages with errors in a row, by caller; with paused_at the caller''s messages with the template are not sent.';

COMMENT ON COLUMN template_pauses.strikes IS 'Errors in a row that the template is to blame for.';

COMMENT ON COLUMN template_pauses.reason IS 'The last error, for people.';

COMMENT ON COLUMN template_pauses.caller_id IS 'The caller that ordered the messages: callers.id, 0 for the pair of the environment, -1 for all callers.';

COMMENT ON TABLE upkeep IS 'When each kind of maintenance last began, whoever did it.';

COMMENT ON COLUMN upkeep.what IS 'The kind of maintenance, as house (partitions, closed days, archive), events (trim of the stream) or alerts.';

COMMENT ON COLUMN upkeep.seq IS 'Where the next look at a stream goes on; 0: at its beginning. Of users: no longer used.';

COMMENT ON TABLE webhook_deliveries IS 'Each event for each endpoint, with every try.';

COMMENT ON COLUMN webhook_deliveries.event_type IS 'The type of the CloudEvent, as sendonce.task.failed.v1.';

COMMENT ON COLUMN webhook_deliveries.own_payload IS 'The body of each POST, of deliveries recorded before webhook_events was added; null: that of webhook_events.';

COMMENT ON COLUMN webhook_deliveries.state IS '0 pending, 1 delivered, 2 failed.';

COMMENT ON COLUMN webhook_deliveries.attempts IS 'Failures in this schedule; a resend starts a new schedule.';

COMMENT ON COLUMN webhook_deliveries.tried IS 'How often it was tried; the column tries keeps the last 50 of them.';

COMMENT ON TABLE webhook_endpoints IS 'Where the events of a caller are posted. A row without url holds the secret that signs its callbacks and its messages to URLs.';

COMMENT ON COLUMN webhook_endpoints.events IS 'The kinds of events that are posted; empty: all.';

COMMENT ON COLUMN webhook_endpoints.disabled_reason IS 'gone (it answered 410), failing (nothing but failures for five days), by_hand.';

COMMENT ON COLUMN webhook_endpoints.registered_caller IS 'caller_id, null for caller 0: a caller with endpoints cannot be removed.';

COMMENT ON TABLE webhook_events IS 'Events that webhook_deliveries sends, each once. Kept for as long as one of its deliveries.';

COMMENT ON COLUMN webhook_events.payload IS 'The body of each POST.';

COMMENT ON COLUMN webhook_events.recorded_at IS 'When it was last recorded, to half a day.';

CREATE OR REPLACE FUNCTION public.drop_log_partition(partition text, before timestamp with time zone)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
 SET lock_timeout TO '100ms'
AS $function$
BEGIN
    IF before > now() - interval '1 day' THEN
        RAISE EXCEPTION 'logs of the last day are not dropped';
    END IF;
    IF NOT EXISTS (SELECT FROM old_log_partitions(before) WHERE name = partition) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS %I', partition);
    RETURN true;
END $function$
;

CREATE OR REPLACE FUNCTION public.make_log_partitions(ahead integer)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    parent text;
    first  timestamp := date_trunc('month', now() AT TIME ZONE 'UTC');
    month  timestamp;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('sendonce.log_partitions'));
    FOREACH parent IN ARRAY ARRAY['receive_logs', 'send_logs', 'report_logs'] LOOP
        FOR n IN 0..least(greatest(ahead, 0), 24) LOOP
            month := first + make_interval(months => n);
            CONTINUE WHEN to_regclass(parent || to_char(month, '_YYYYMM')) IS NOT NULL;
            -- Created apart and attached: CREATE … PARTITION OF would lock the parent against every writer.
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', parent || to_char(month, '_YYYYMM'), parent);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                parent, parent || to_char(month, '_YYYYMM'), month::text || '+00', (month + interval '1 month')::text || '+00');
        END LOOP;
    END LOOP;
END $function$
;

CREATE OR REPLACE FUNCTION public.move_subscribe_total()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    first_open date;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7310001);
    SELECT max(day) + 1 INTO first_open FROM task_totals WHERE counted_to IS NULL;
    INSERT INTO subscribe_totals (day, caller_id, template_type, total, success, failed)
    SELECT day, caller_id, template_type, n, CASE send_status WHEN 1 THEN n ELSE 0 END, CASE send_status WHEN 2 THEN n ELSE 0 END
    FROM (VALUES ((OLD.send_time AT TIME ZONE 'UTC')::date, OLD.caller_id, OLD.template_type, OLD.send_status, -1),
                 ((NEW.send_time AT TIME ZONE 'UTC')::date, NEW.caller_id, NEW.template_type, NEW.send_status, 1))
        AS moved (day, caller_id, template_type, send_status, n)
    WHERE day < first_open;
    RETURN NULL;
END $function$
;

CREATE OR REPLACE FUNCTION public.old_log_partitions(before timestamp with time zone)
 RETURNS TABLE(name text, ends timestamp with time zone)
 LANGUAGE sql
 STABLE
 SET search_path TO 'public', 'pg_temp'
 SET "TimeZone" TO 'UTC'
 SET "DateStyle" TO 'ISO'
AS $function$
    SELECT * FROM (
        SELECT c.relname::text, (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''([^'']+)''\)'))[1]::timestamptz AS upper_bound
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent IN ('receive_logs'::regclass, 'send_logs'::regclass, 'report_logs'::regclass)
    ) partitions
    WHERE upper_bound <= before
    ORDER BY 2, 1
$function$
;

CREATE OR REPLACE FUNCTION public.refuse_archived_subscribe_message()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
AS $function$
BEGIN
    IF EXISTS (SELECT FROM archived_subscribe_message_logs a WHERE a.business_type = NEW.business_type AND a.business_id = NEW.business_id
            AND a.template_type = NEW.template_type AND a.receiver_user_id = NEW.receiver_user_id) THEN
        RAISE unique_violation USING MESSAGE = 'this subscribe message is archived', CONSTRAINT = 'archived_business_template_receiver';
    END IF;
    RETURN NULL;
END $function$
;

CREATE OR REPLACE FUNCTION public.refuse_plain_secrets()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE
    upgraded boolean;
BEGIN
    IF TG_TABLE_NAME = 'webhook_endpoints' THEN
        upgraded := EXISTS (SELECT FROM webhook_endpoints WHERE secret NOT LIKE 'enc2.%' OR old_secret NOT LIKE 'enc2.%');
    ELSE
        upgraded := EXISTS (SELECT FROM provider_tokens WHERE token NOT LIKE 'enc2.%');
    END IF;
    IF NOT upgraded THEN
        RAISE EXCEPTION 'a secret of % is not encrypted and bound to its row', TG_TABLE_NAME
            USING ERRCODE = 'check_violation', HINT = 'replace processes of earlier versions';
    END IF;
    RETURN new;
END
$function$
;

CREATE OR REPLACE FUNCTION public.restore_subscribe_message(message_id bigint)
 RETURNS void
 LANGUAGE sql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
$function$
;

CREATE OR REPLACE FUNCTION public.token_proof(caller_id bigint, salt bytea)
 RETURNS bytea
 LANGUAGE sql
 STABLE SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    SELECT sha256(salt || token_hash) FROM public.callers WHERE id = caller_id
$function$
;

CREATE TRIGGER plain_token_written BEFORE INSERT OR UPDATE OF token ON public.provider_tokens FOR EACH ROW WHEN ((new.token !~~ 'enc2.%'::text)) EXECUTE FUNCTION refuse_plain_secrets();

CREATE TRIGGER subscribe_message_logs_archived AFTER INSERT ON public.subscribe_message_logs FOR EACH ROW EXECUTE FUNCTION refuse_archived_subscribe_message();

CREATE TRIGGER subscribe_message_logs_totals AFTER UPDATE ON public.subscribe_message_logs FOR EACH ROW WHEN (((LEAST(old.send_time, new.send_time) < date_trunc('day'::text, now(), 'UTC'::text)) AND ((old.send_time IS DISTINCT FROM new.send_time) OR (old.send_status IS DISTINCT FROM new.send_status)))) EXECUTE FUNCTION move_subscribe_total();

CREATE TRIGGER plain_secrets_added BEFORE INSERT ON public.webhook_endpoints FOR EACH ROW WHEN (((new.secret !~~ 'enc2.%'::text) OR (new.old_secret !~~ 'enc2.%'::text))) EXECUTE FUNCTION refuse_plain_secrets();

CREATE TRIGGER plain_secrets_changed BEFORE UPDATE OF secret, old_secret ON public.webhook_endpoints FOR EACH ROW WHEN (((new.secret !~~ 'enc2.%'::text) OR (new.old_secret !~~ 'enc2.%'::text))) EXECUTE FUNCTION refuse_plain_secrets();
