-- A claim belongs to the caller that made it. A process of an older version writes neither column: it leaves claimed_by as it was
-- when it claims a task again, so claimed_by counts only with the claim in owned_claim.
ALTER TABLE task_live ADD COLUMN claimed_by bigint, ADD COLUMN owned_claim bigint;
COMMENT ON COLUMN task_live.claimed_by IS 'The caller that made the claim owned_claim: callers.id, 0 for the pair of the environment, -1 for a function of the service itself.';
COMMENT ON COLUMN task_live.owned_claim IS 'The claim that claimed_by made. If it is not claim_id, nobody knows who made that: a process of an older version claimed the task.';
ALTER TABLE task_done ADD COLUMN claimed_by bigint;
COMMENT ON COLUMN task_done.claimed_by IS 'The caller that made the newest claim, as in task_live; null: not known.';
ALTER TABLE archived_tasks ADD COLUMN claimed_by bigint;
COMMENT ON COLUMN archived_tasks.claimed_by IS 'That of task_done.';

ALTER TABLE report_logs ADD COLUMN caller_id bigint;
COMMENT ON COLUMN report_logs.caller_id IS 'Of a stale report: its caller, unless that made the newest claim. Only the first such report of a caller on a task is kept.';
