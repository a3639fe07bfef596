-- The figures of subscribe messages: those of the days that were closed before they were counted apart, and an index for each list.

-- Sends name the tasks of subscribe messages, wherever their results are. What an older program finishes after this file counts
-- as SMS: replace all instances soon after migrating.
UPDATE task_done d SET subscribe = true FROM subscribe_message_sends s WHERE s.task_id = d.id;

-- A closed day counted both together, so what was not of subscribe messages was SMS.
WITH subscribe AS (
    SELECT (reported_at AT TIME ZONE 'UTC')::date AS day, count(*) FILTER (WHERE status = 2) AS succeeded, count(*) FILTER (WHERE status = 3) AS failed
    FROM (
        SELECT reported_at, status FROM task_done WHERE subscribe
        UNION ALL
        SELECT a.reported_at, a.status FROM archived_tasks a JOIN subscribe_message_sends s ON s.task_id = a.id
    ) results
    GROUP BY 1
)
UPDATE task_totals t SET succeeded = t.succeeded - s.succeeded, failed = t.failed - s.failed,
    subscribe_succeeded = s.succeeded, subscribe_failed = s.failed
FROM (
    SELECT day, coalesce(s.succeeded, 0) AS succeeded, coalesce(s.failed, 0) AS failed FROM task_totals LEFT JOIN subscribe s USING (day)
) s
WHERE t.day = s.day;
-- Without defaults: an older program that would count both together again cannot close a day.
ALTER TABLE task_totals ALTER COLUMN subscribe_succeeded SET NOT NULL, ALTER COLUMN subscribe_failed SET NOT NULL;

-- The newest failures of one caller, and what was sent since a time.
CREATE INDEX subscribe_message_logs_failed_caller ON subscribe_message_logs (caller_id, send_time) WHERE send_status = 2;
CREATE INDEX subscribe_message_logs_time ON subscribe_message_logs (send_time);

-- The messages whose send_time lies in a closed day. The rows of one day, caller and type add up: a change of a message of a closed
-- day adds rows and never waits for another change. Closing a day merges them.
CREATE TABLE subscribe_totals (
    day           date NOT NULL,
    caller_id     bigint NOT NULL,
    template_type varchar(50) NOT NULL,
    total         bigint NOT NULL,
    success       bigint NOT NULL,
    failed        bigint NOT NULL
);
CREATE INDEX subscribe_totals_day ON subscribe_totals (day);
COMMENT ON TABLE subscribe_totals IS 'Subscribe messages by the UTC day of their send_time, of the days that task_totals has closed. The rows of one day, caller and type add up.';
COMMENT ON COLUMN subscribe_totals.total IS 'Messages of any send_status. May be negative in one row, as success and failed: what left the day.';

-- Moves a message of a closed day between days and figures. The lock is that of closing a day (store.totalsLock).
CREATE FUNCTION move_subscribe_total() RETURNS trigger
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
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
END $$;
REVOKE EXECUTE ON FUNCTION move_subscribe_total() FROM PUBLIC;

-- Today is never closed. An archived message stays counted: there is no trigger for INSERT or DELETE, and one that comes back is
-- inserted as it was before it is changed.
CREATE TRIGGER subscribe_message_logs_totals AFTER UPDATE ON subscribe_message_logs FOR EACH ROW
WHEN (least(OLD.send_time, NEW.send_time) < date_trunc('day', now(), 'UTC')
    AND (OLD.send_time, OLD.send_status) IS DISTINCT FROM (NEW.send_time, NEW.send_status))
EXECUTE FUNCTION move_subscribe_total();

INSERT INTO subscribe_totals (day, caller_id, template_type, total, success, failed)
SELECT (send_time AT TIME ZONE 'UTC')::date, caller_id, template_type, count(*), count(*) FILTER (WHERE send_status = 1),
    count(*) FILTER (WHERE send_status = 2)
FROM subscribe_message_logs
WHERE send_time < (SELECT max(day) + 1 FROM task_totals WHERE counted_to IS NULL)::timestamp AT TIME ZONE 'UTC'
GROUP BY 1, 2, 3;
