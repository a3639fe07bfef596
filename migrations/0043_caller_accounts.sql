-- A limited operator (role admin with queues) may make callers. They are one account with it: they use its quotas and shares, and are
-- revoked and narrowed with it.

ALTER TABLE callers
    ADD COLUMN made_by bigint REFERENCES callers (id),
    ADD COLUMN account_id bigint REFERENCES callers (id);
COMMENT ON COLUMN callers.made_by IS 'The limited operator that made the caller, or was the first to replace its token. NULL: none did.';
COMMENT ON COLUMN callers.account_id IS 'The caller at the beginning of the chain of made_by, whose quotas and shares the caller uses. NULL: its own.';

-- For the callers of before, the audit log has who made them and who replaced their tokens.
UPDATE callers c SET made_by = a.made_by
FROM (
    SELECT DISTINCT ON (a.subject) a.subject, a.caller_id AS made_by
    FROM (
        SELECT id, subject, action, caller_id FROM operator_actions
        UNION ALL
        SELECT id, subject, action, caller_id FROM archived_operator_actions
    ) a JOIN callers o ON o.id = a.caller_id
    WHERE a.action IN ('caller.create', 'caller.rotate') AND 'caller/' || o.id <> a.subject
        AND 'admin' = ANY (o.roles) AND cardinality(o.queues) > 0
    ORDER BY a.subject, a.id
) a
WHERE a.subject = 'caller/' || c.id AND starts_with(c.name::text, (SELECT name::text || '.' FROM callers WHERE id = a.made_by));
WITH RECURSIVE account (id, root) AS (
    SELECT c.id, c.made_by FROM callers c JOIN callers o ON o.id = c.made_by WHERE o.made_by IS NULL
    UNION ALL
    SELECT c.id, account.root FROM callers c JOIN account ON c.made_by = account.id
)
UPDATE callers c SET account_id = account.root FROM account WHERE account.id = c.id;

CREATE INDEX callers_made_by ON callers (made_by) WHERE made_by IS NOT NULL;
CREATE INDEX callers_account ON callers (account_id) WHERE account_id IS NOT NULL;
