-- The meaning of each table and of each column whose values are codes, where SQL clients show it. A test demands a comment
-- for every table and every such column: a migration that adds one comments it in the same file.

COMMENT ON TABLE schema_migrations IS 'The migrations that were applied to this database, in order. Written by migrate only.';

-- Tasks.

COMMENT ON TABLE tasks IS 'The body of each task of the main tables: an SMS, or one send of a subscribe message. Written once, never changed.';
COMMENT ON COLUMN tasks.seq IS 'A number in about the order of submission: sms_tasks.id.';
COMMENT ON COLUMN tasks.caller_id IS 'The caller who submitted it: callers.id, or 0 for the pair of the environment, which has no row.';
COMMENT ON COLUMN tasks.priority IS '0 to 9, 0 first; 5 unless the submitter says otherwise.';
COMMENT ON COLUMN tasks.max_retries IS 'How many retries follow the first try, 0 to 10.';
COMMENT ON COLUMN tasks.on_unknown IS 'What follows when nobody knows whether the message was sent: 0 resend, 1 hold, 2 fail.';

COMMENT ON TABLE task_live IS 'One narrow row for each task that is not final: the one row to lock.';
COMMENT ON COLUMN task_live.state IS '0 scheduled, 1 pending, 2 processing, 3 held.';
COMMENT ON COLUMN task_live.priority IS 'That of tasks.';
COMMENT ON COLUMN task_live.retry_count IS 'Retries begun so far, 0 to max_retries.';
COMMENT ON COLUMN task_live.max_retries IS 'That of tasks.';
COMMENT ON COLUMN task_live.on_unknown IS 'That of tasks: 0 resend, 1 hold, 2 fail.';
COMMENT ON COLUMN task_live.ended IS 'How the newest claim (claim_id, app_id) ended: 0 not yet, 1 failed, 2 unknown, 3 released, 4 timeout, 5 succeeded, 6 by an operator.';

COMMENT ON TABLE task_done IS 'The result of each final task of the main tables.';
COMMENT ON COLUMN task_done.status IS '2 succeeded, 3 failed.';
COMMENT ON COLUMN task_done.reason IS 'Why it failed: 0 none (it succeeded), 1 rejected, 2 retries_exhausted, 3 timeout, 4 unknown, 5 expired, 6 cancelled.';
COMMENT ON COLUMN task_done.retry_count IS 'Retries begun in all.';
COMMENT ON COLUMN task_done.ended IS 'How the newest claim ended, as task_live.ended.';

COMMENT ON TABLE archived_tasks IS 'Final tasks older than RETENTION_DAYS, body and result in one row. Found by id only.';
COMMENT ON COLUMN archived_tasks.priority IS 'That of tasks.';
COMMENT ON COLUMN archived_tasks.max_retries IS 'That of tasks.';
COMMENT ON COLUMN archived_tasks.on_unknown IS 'That of tasks: 0 resend, 1 hold, 2 fail.';
COMMENT ON COLUMN archived_tasks.status IS 'That of task_done: 2 succeeded, 3 failed.';
COMMENT ON COLUMN archived_tasks.reason IS 'That of task_done: 0 none, 1 rejected, 2 retries_exhausted, 3 timeout, 4 unknown, 5 expired, 6 cancelled.';
COMMENT ON COLUMN archived_tasks.retry_count IS 'That of task_done.';
COMMENT ON COLUMN archived_tasks.ended IS 'That of task_done, as task_live.ended.';

COMMENT ON TABLE task_totals IS 'Results of each UTC day that is closed, so that statistics never count the history.';

COMMENT ON TABLE submission_keys IS 'Every idempotency key ever used: the primary key is its only judge. key and fingerprint are the first 128 bits of a SHA-256.';

COMMENT ON VIEW sms_tasks IS 'The original table of SMS tasks, read-only, over the main tables. For looking at rows, not for counting.';
COMMENT ON COLUMN sms_tasks.status IS '0 PENDING, 1 PROCESSING, 2 SUCCESS, 3 FAILED.';

-- Templates and default content.

COMMENT ON TABLE sms_templates IS 'Templates of SMS texts with {parameters}. The active one with the lowest id is used.';
COMMENT ON TABLE default_sms_data IS 'The text that is sent once to a phone number whose submission has no content.';
COMMENT ON TABLE blocked_words IS 'Words that no message may hold. word as typed; folded (NFKC, case-folded) is what texts are searched for.';

-- Logs.

COMMENT ON TABLE receive_logs IS 'Every submission, refused ones too. Append-only, monthly partitions (UTC).';
COMMENT ON COLUMN receive_logs.status_code IS 'The HTTP status of the answer.';
COMMENT ON TABLE send_logs IS 'Every claim of a task. Append-only, monthly partitions (UTC).';
COMMENT ON TABLE report_logs IS 'Every report of a sender, and every decision that sweep or an operator made instead. Append-only, monthly partitions (UTC).';
COMMENT ON COLUMN report_logs.status IS 'What the sender reported: 2 sent, 3 failed; null when it could not tell, and for decisions of sweep or an operator.';
COMMENT ON COLUMN report_logs.verdict IS 'What became of it: applied, already, stale_claim (changed nothing); by sweep: timeout_retry, timeout_held, timeout_failed, expired; by an operator: cancelled, resolved, retried.';

-- Callers and operators.

COMMENT ON TABLE callers IS 'Who may call. The pair of the environment is caller 0 and has no row. Rows are never removed.';
COMMENT ON COLUMN callers.roles IS 'submitter, sender, receiver, trigger, admin.';
COMMENT ON COLUMN callers.queues IS 'The queues that the caller may use; empty: all.';
COMMENT ON TABLE operator_actions IS 'Who changed what by hand, before and after. Append-only.';
COMMENT ON COLUMN operator_actions.action IS 'What was done, as template.update or task.cancel.';
COMMENT ON COLUMN operator_actions.subject IS 'What it was done to, as template/7 or the id of a task or message.';
COMMENT ON COLUMN operator_actions.reason IS 'In the words of the operator.';

-- Messages.

COMMENT ON TABLE messages IS 'The body of each reliable message. Written once, never changed.';
COMMENT ON COLUMN messages.kind IS 'What destination is: 0 a subject, 1 a URL, 2 a user.';
COMMENT ON COLUMN messages.max_sends IS 'Sends in one epoch, 1 to 20.';
COMMENT ON COLUMN messages.expected_receipts IS 'How many consumers must confirm, 1 to 100.';

COMMENT ON TABLE message_live IS 'One narrow row for each message that is not final: the one row to lock.';
COMMENT ON COLUMN message_live.status IS '0 sending, 1 sent.';
COMMENT ON COLUMN message_live.remaining_sends IS 'Sends left in this epoch; with 0 the message is stuck.';
COMMENT ON COLUMN message_live.send_no IS 'Sends used in this epoch.';
COMMENT ON COLUMN message_live.kind IS 'That of messages: 0 a subject, 1 a URL, 2 a user.';

COMMENT ON TABLE message_done IS 'The end of each final message.';
COMMENT ON COLUMN message_done.status IS '1 sent (no confirmation was wanted), 2 received; of an abandoned message how far it came: 0 sending, 1 sent.';
COMMENT ON COLUMN message_done.remaining_sends IS 'Sends that were left in the last epoch.';
COMMENT ON COLUMN message_done.send_no IS 'Sends used in the last epoch.';

COMMENT ON TABLE message_receipts IS 'Which consumer confirmed which message, once each.';
COMMENT ON COLUMN message_receipts.send_no IS 'The newest send when the confirmation came.';

COMMENT ON TABLE message_cursors IS 'How far a user has read a conversation: the newest message read. It only moves forward.';

COMMENT ON TABLE accepted_messages IS 'Messages that were accepted by a stream, are saved, and are still in the stream to recognise repeats.';
COMMENT ON TABLE accepted_checked IS 'How far the stream was compared with what is saved: nothing at or before accept_seq is missing. One row.';

COMMENT ON VIEW reliable_messages IS 'The original table of reliable messages, read-only. For looking at rows, not for counting.';
COMMENT ON COLUMN reliable_messages.remaining_sends IS 'Null where nothing more is sent and no confirmation came.';
COMMENT ON COLUMN reliable_messages.status IS '0 sending, 1 sent, 2 received.';

-- Events and webhooks.

COMMENT ON TABLE event_outbox IS 'Events to publish, one row for each commit and kind, ids only. A row is deleted when a stream has all its events.';
COMMENT ON COLUMN event_outbox.kind IS 'task.<state>, webhook.disabled, message.saved, message.rejected, alert.raised, alert.cleared.';
COMMENT ON COLUMN event_outbox.reason IS 'Of task.failed: that of task_done.';

COMMENT ON TABLE webhook_endpoints IS 'Where the events of a caller are posted. A row without url holds the secret that signs its callbacks and its messages to URLs.';
COMMENT ON COLUMN webhook_endpoints.events IS 'The kinds of events that are posted; empty: all.';
COMMENT ON COLUMN webhook_endpoints.disabled_reason IS 'gone (it answered 410), failing (nothing but failures for five days), by_hand.';

COMMENT ON TABLE webhook_deliveries IS 'Each event for each endpoint, with every try.';
COMMENT ON COLUMN webhook_deliveries.state IS '0 pending, 1 delivered, 2 failed.';
COMMENT ON COLUMN webhook_deliveries.attempts IS 'Failures in this schedule; a resend starts a new schedule.';
COMMENT ON COLUMN webhook_deliveries.event_type IS 'The type of the CloudEvent, as sendonce.task.failed.v1.';

COMMENT ON TABLE dead_letters IS 'Events that a function will never accept, for an operator. While dead is false it only counts the panics of an event.';
COMMENT ON COLUMN dead_letters.event_type IS 'The type of the CloudEvent.';
COMMENT ON COLUMN dead_letters.reason IS 'Why it was not accepted, for people.';

-- Subscribe messages.

COMMENT ON TABLE subscribe_message_logs IS 'One row for each subscribe message: business event, type of template and receiver name it (uk_business_template_receiver).';
COMMENT ON COLUMN subscribe_message_logs.template_id IS 'The template at WeChat.';
COMMENT ON COLUMN subscribe_message_logs.template_type IS 'The type of the message, as BOOKING_CONFIRM.';
COMMENT ON COLUMN subscribe_message_logs.business_type IS 'The type of the business event, as course_booking.';
COMMENT ON COLUMN subscribe_message_logs.business_id IS 'The id of the business event, unsigned 64 bits.';
COMMENT ON COLUMN subscribe_message_logs.receiver_user_id IS 'The receiver as the business knows it, unsigned 64 bits.';
COMMENT ON COLUMN subscribe_message_logs.receiver_openid IS 'The receiver as WeChat knows it.';
COMMENT ON COLUMN subscribe_message_logs.message_data IS 'What the newest send fills into the template.';
COMMENT ON COLUMN subscribe_message_logs.send_status IS '0 sending, 1 sent, 2 failed.';
COMMENT ON COLUMN subscribe_message_logs.send_time IS 'When it was ordered, or when send_status became what it is.';
COMMENT ON COLUMN subscribe_message_logs.retry_count IS 'Retries of all its sends.';
COMMENT ON COLUMN subscribe_message_logs.task_id IS 'Its newest send.';
COMMENT ON COLUMN subscribe_message_logs.retries_before IS 'Retries of the sends before the newest.';
COMMENT ON COLUMN subscribe_message_logs.doubtful IS 'Nobody knows whether some send of it was delivered.';

COMMENT ON TABLE subscribe_message_sends IS 'Each send of a subscribe message with what it sends: the body of a task, and the history of the message.';
COMMENT ON COLUMN subscribe_message_sends.miniprogram_state IS 'Which version of the mini program a tap opens: developer, trial or formal; null: formal.';
COMMENT ON TABLE template_pauses IS 'Templates of subscribe messages with errors in a row; with paused_at the template is not sent.';
COMMENT ON COLUMN template_pauses.strikes IS 'Errors in a row that the template is to blame for.';
COMMENT ON COLUMN template_pauses.reason IS 'The last error, for people.';
COMMENT ON TABLE provider_tokens IS 'Access tokens of providers, shared by all instances.';

-- Operation.

COMMENT ON TABLE queue_pauses IS 'Queues that hand out nothing until a time; until null: until somebody resumes them.';
COMMENT ON COLUMN queue_pauses.reason IS 'For people.';
COMMENT ON TABLE alerts IS 'Queues over a threshold. One row is one incident; at most one is open for each kind and queue.';
COMMENT ON COLUMN alerts.kind IS 'failure_rate (value is a part of 1) or backlog (value is a number of tasks).';
COMMENT ON TABLE upkeep IS 'When each kind of maintenance last began, whoever did it.';
COMMENT ON COLUMN upkeep.what IS 'The kind of maintenance, as house (partitions, closed days, archive), events (trim of the stream) or alerts.';
