-- Callers, and the log of what operators change.

-- SQL clients show a COMMENT. A test requires one for every table, and for every column whose values are codes.
COMMENT ON TABLE schema_migrations IS 'The migrations that were applied to this database, in order. Written by migrate only.';

CREATE TABLE callers (
    id                   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                 varchar(50) NOT NULL UNIQUE,
    token_hash           bytea NOT NULL CHECK (octet_length(token_hash) = 32),
    roles                text[] NOT NULL,
    queues               text[] NOT NULL,
    business_types       text[] NOT NULL DEFAULT '{}',
    receives             text[] NOT NULL DEFAULT '{}',
    best_priority        smallint NOT NULL DEFAULT 0 CHECK (best_priority BETWEEN 0 AND 5),
    max_waiting_tasks    bigint CHECK (max_waiting_tasks > 0),
    max_waiting_messages bigint CHECK (max_waiting_messages > 0),
    max_waiting_bytes    bigint CHECK (max_waiting_bytes > 0),
    made_by              bigint REFERENCES callers (id),
    account_id           bigint REFERENCES callers (id),
    created_at           timestamptz NOT NULL DEFAULT now(),
    rotated_at           timestamptz,
    revoked_at           timestamptz
);
CREATE INDEX callers_made_by ON callers (made_by) WHERE made_by IS NOT NULL;
CREATE INDEX callers_account ON callers (account_id) WHERE account_id IS NOT NULL;
COMMENT ON TABLE callers IS 'Who may call the API. The built-in admin, whose name and password are settings, is caller 0 and has no row. Rows are never deleted.';
COMMENT ON COLUMN callers.roles IS 'submitter, sender, receiver, viewer, trigger, admin.';
COMMENT ON COLUMN callers.queues IS 'The queues that the caller may use; empty: all.';
COMMENT ON COLUMN callers.business_types IS 'The business types of subscribe messages that the caller may submit and look up; empty: all.';
COMMENT ON COLUMN callers.receives IS 'NATS patterns of the subjects whose messages the caller may confirm: * is one token, > at the end is one or more. Empty: none.';
COMMENT ON COLUMN callers.best_priority IS 'The smallest number that the caller may give as the priority of a task. Tasks of priority 0 are claimed first; a task without a priority gets 5.';
COMMENT ON COLUMN callers.max_waiting_tasks IS 'The caller can submit no tasks while its account (account_id) has this many in task_live. NULL: SENDONCE_CALLER_WAITING_TASKS.';
COMMENT ON COLUMN callers.max_waiting_messages IS 'The caller can submit no messages while this many of its account (account_id) wait to be delivered or confirmed. NULL: SENDONCE_CALLER_WAITING_MESSAGES.';
COMMENT ON COLUMN callers.max_waiting_bytes IS 'As max_waiting_messages, but bytes of the data of the messages. NULL: SENDONCE_CALLER_WAITING_MB.';
COMMENT ON COLUMN callers.made_by IS 'The limited operator (role admin with queues) that created the caller, or was the first to replace its token or to grant it more. When that operator is revoked, this caller is revoked too; when that operator loses rights, this caller loses them too. NULL: no limited operator did.';
COMMENT ON COLUMN callers.account_id IS 'The caller at the beginning of the chain of made_by. Quotas count that first caller and all callers with its id here together. NULL: the caller itself is the first.';

-- Returns the SHA-256 of a salt and token_hash. With this proof a function verifies a token. No role that a function logs in as can read
-- token_hash itself.
CREATE FUNCTION token_proof(caller_id bigint, salt bytea) RETURNS bytea
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256(salt || token_hash) FROM public.callers WHERE id = caller_id
$$;
REVOKE EXECUTE ON FUNCTION token_proof(bigint, bytea) FROM PUBLIC;

CREATE TABLE operator_actions (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    caller_id   bigint NOT NULL,
    caller_name varchar(50) NOT NULL,
    request_id  varchar(50) NOT NULL,
    action      text NOT NULL,
    subject     text NOT NULL,
    reason      text,
    before      jsonb,
    after       jsonb,
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX operator_actions_subject ON operator_actions (subject, id);
CREATE INDEX operator_actions_created ON operator_actions (created_at, id);
COMMENT ON TABLE operator_actions IS 'What operators changed: who, why, and the state before and after. Append-only.';
COMMENT ON COLUMN operator_actions.action IS 'What was done, such as template.update or task.cancel.';
COMMENT ON COLUMN operator_actions.subject IS 'What it was done to, such as template/7 or the id of a task or message.';
COMMENT ON COLUMN operator_actions.reason IS 'Why, in the words of the operator.';

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
COMMENT ON COLUMN archived_operator_actions.action IS 'As in operator_actions.';
COMMENT ON COLUMN archived_operator_actions.subject IS 'As in operator_actions.';
COMMENT ON COLUMN archived_operator_actions.reason IS 'As in operator_actions.';
