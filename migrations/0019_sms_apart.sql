-- SMS and subscribe messages are counted apart: a failed subscribe message is no failed SMS.

-- Statistics count results without reading the bodies, so a result says itself what it is of.
ALTER TABLE task_done ADD COLUMN subscribe boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN task_done.subscribe IS 'The task was a send of a subscribe message (queues wechat and wechat.recorded), not an SMS.';

-- Filled by the next file, which may take long and must not hold the lock that adding a column to task_done takes.
ALTER TABLE task_totals ADD COLUMN subscribe_succeeded bigint, ADD COLUMN subscribe_failed bigint;
COMMENT ON COLUMN task_totals.succeeded IS 'SMS.';
COMMENT ON COLUMN task_totals.failed IS 'SMS.';
COMMENT ON COLUMN task_totals.subscribe_succeeded IS 'Sends of subscribe messages.';
COMMENT ON COLUMN task_totals.subscribe_failed IS 'Sends of subscribe messages.';

CREATE OR REPLACE VIEW sms_tasks AS
SELECT t.seq AS id,
       t.id AS task_id,
       t.phone_number,
       t.content,
       CASE WHEN d.id IS NOT NULL THEN d.status::integer WHEN l.state >= 2 THEN 1 ELSE 0 END AS status,
       t.source,
       COALESCE(d.retry_count, l.retry_count)::integer AS retry_count,
       CASE WHEN l.state = 2 OR l.ended IN (1, 2) AND l.state = 3 THEN l.app_id WHEN d.reason IN (0, 1) THEN d.app_id END AS processing_app_id,
       COALESCE(d.result, l.result) AS result,
       t.created_at,
       COALESCE(d.reported_at, l.updated_at) AS updated_at,
       d.sent_at,
       d.reported_at,
       t.queue,
       CASE d.reason WHEN 1 THEN 'rejected' WHEN 2 THEN 'retries_exhausted' WHEN 3 THEN 'timeout' WHEN 4 THEN 'unknown'
                     WHEN 5 THEN 'expired' WHEN 6 THEN 'cancelled' END AS reason
FROM tasks t
LEFT JOIN task_live l ON l.id = t.id
LEFT JOIN task_done d ON d.id = t.id
WHERE t.queue NOT IN ('wechat', 'wechat.recorded');
COMMENT ON VIEW sms_tasks IS 'The original table of SMS tasks, read-only, over the main tables; sends of subscribe messages are not in it. For looking at rows, not for counting.';
COMMENT ON COLUMN sms_tasks.reason IS 'Why it failed, as a word; null unless status is 3.';
