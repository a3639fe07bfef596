-- What is not to be sent for a while, and the access tokens that all instances share.

-- A queue with a row hands out nothing until then; until null: until somebody resumes it. A row whose time is over counts no more:
-- sweep has yet to tell those who wait, and removes it.
CREATE TABLE queue_pauses (
    queue      text COLLATE "C" PRIMARY KEY CHECK (octet_length(queue) BETWEEN 1 AND 63),
    until      timestamptz,
    reason     text NOT NULL,
    paused_by  text NOT NULL,
    by_hand    boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX queue_pauses_until ON queue_pauses (until) WHERE until IS NOT NULL;

-- strikes: errors in a row that the template is to blame for. paused_at null: not paused yet.
CREATE TABLE template_pauses (
    template_id varchar(100) PRIMARY KEY,
    strikes     smallint NOT NULL,
    paused_at   timestamptz,
    reason      text NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE provider_tokens (
    provider   text NOT NULL,
    app_id     text NOT NULL,
    token      text NOT NULL,
    expires_at timestamptz NOT NULL,
    version    bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, app_id)
);
