-- Receivers go on: each is granted the subjects of which it has confirmed a message that was sent, and nothing else. One with more than 100
-- such subjects, which a list of grants may have, is granted all below their first two tokens: msg.orders.> for msg.orders.<number>.
WITH confirmed AS (
    SELECT r.consumer, m.destination
    FROM message_receipts r JOIN messages m ON m.id = r.message_id
    WHERE m.kind = 0 AND r.send_no > 0 -- 0: a subject
    UNION
    SELECT r.consumer, m.destination
    FROM archived_messages m CROSS JOIN LATERAL jsonb_to_recordset(m.receipts) r (consumer text, "sendNo" integer)
    WHERE m.kind = 0 AND r."sendNo" > 0
), counted AS (
    SELECT consumer, destination, count(*) OVER (PARTITION BY consumer) AS subjects FROM confirmed
), granted AS (
    SELECT consumer, array_agg(DISTINCT CASE WHEN subjects > 100 AND destination LIKE '%.%.%'
        THEN split_part(destination, '.', 1) || '.' || split_part(destination, '.', 2) || '.>' ELSE destination END) AS subjects
    FROM counted
    GROUP BY consumer
)
UPDATE callers SET receives = granted.subjects
FROM granted
WHERE callers.name = granted.consumer AND 'receiver' = ANY (callers.roles) AND callers.revoked_at IS NULL AND callers.receives = '{}';
