-- Who may call. The pair of the environment is caller 0 and has no row.
CREATE TABLE callers (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       varchar(50) NOT NULL UNIQUE,
    token_hash bytea NOT NULL CHECK (octet_length(token_hash) = 32),
    roles      text[] NOT NULL,
    queues     text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    rotated_at timestamptz,
    revoked_at timestamptz
);

-- Who did what by hand, before and after.
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
