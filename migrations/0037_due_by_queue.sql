-- What falls due of one queue must not wait behind what falls due of the others: sweep takes a part of each. Queues are in the
-- order of a hash, so that it may start at any of them by chance. What a claim changes is in one index only, as before.

DROP INDEX task_live_due;
CREATE INDEX task_live_due ON task_live (due_at) WHERE state <> 2 AND due_at IS NOT NULL;
CREATE INDEX task_live_due_queues ON task_live (hashtextextended(queue, 0), queue, due_at) WHERE state <> 2 AND due_at IS NOT NULL;
CREATE INDEX task_live_leases ON task_live (due_at) WHERE state = 2;
