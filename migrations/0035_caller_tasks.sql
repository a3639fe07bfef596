-- What one caller has waiting, and how far forward it puts that, must not keep the tasks of another waiting for ever.

ALTER TABLE callers
    ADD COLUMN max_waiting_tasks bigint CHECK (max_waiting_tasks > 0),
    ADD COLUMN best_priority smallint NOT NULL DEFAULT 0 CHECK (best_priority BETWEEN 0 AND 5);
COMMENT ON COLUMN callers.max_waiting_tasks IS 'Tasks of the caller that may be in task_live. NULL: SENDONCE_CALLER_WAITING_TASKS decides.';
COMMENT ON COLUMN callers.best_priority IS 'The smallest priority that the caller may give to a task: 0 goes before all others, 5 is what a task has that is given none.';

-- They are counted by a read of the table: an index by caller would cost each submission, claim and report.
COMMENT ON COLUMN task_live.caller_id IS 'As tasks.caller_id.';
