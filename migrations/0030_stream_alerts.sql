COMMENT ON TABLE alerts IS 'Queues and streams over a threshold. One row is one incident; at most one is open for each kind and queue.';
COMMENT ON COLUMN alerts.kind IS 'failure_rate (value is a part of 1), backlog (value is a number of tasks) or stream_full (value is the part of its bytes that is used).';
COMMENT ON COLUMN alerts.queue IS 'The queue. Of stream_full the stream: EVENTS, MESSAGES, USERS, DEADLETTERS, or ACCEPTED whatever TWO_PHASE_STREAM calls it.';
