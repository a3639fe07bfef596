package subscribe_test

import (
	"testing"

	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
)

func TestSubscribePlansUseIndexesWithStaleStatistics(t *testing.T) {
	t.Parallel()
	const message = `'b', '7', 't', '9'`
	storetest.Plans{
		Fill: `
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
	select gen_random_uuid(), 0, 'wechat.recorded', 5, 3, 0, '', 'x' from generate_series(1, 40000);
insert into task_live (id, state, priority, max_retries, on_unknown, queue) select id, 1, 5, 3, 0, 'wechat.recorded' from tasks limit 20000;
insert into task_done (id, status, reason, retry_count, ended) select id, 2, 0, 0, 0 from tasks offset 20000;
insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
	send_status, caller_id, task_id) select 'x', 't', 'b', seq, 9, 'o', '{}', 2, 0, id from tasks;
insert into subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data) select task_id, id, 'x', 'o', '{}' from subscribe_message_logs`,
		Tables: []string{"tasks", "task_live", "task_done", "subscribe_message_logs", "subscribe_message_sends"},
		Args: map[string]string{
			"settleLogs":            storetest.SomeIDs + `, array[1]::smallint[], array[0]::smallint[], array[false], array[''], array[''], array[now()]`,
			"lockNewestSQL":         storetest.AnID,
			"logOfSQL":              message,
			"messageLogSQL":         message,
			"lockLogSQL":            `7, 'x', 'o', '{}', ''`,
			"readLogSQL":            `7, 'x', 'o', '{}', ''`,
			"lockLogTaskSQL":        `7`,
			"logSQL":                `7`,
			"beginSendsSQL":         storetest.SomeIDs,
			"claimedSendsSQL":       storetest.SomeIDs,
			"recordedSendSQL":       `7, 7`,
			"historySQL":            `7, 'infinity', '00000000-0000-0000-0000-000000000000', 20`,
			"failedLogsSQL":         `now(), 7, 10`,
			"failedLogsOfCallerSQL": `now(), 7, 10, 7`,
			"businessLogsSQL":       `'b', '7', 0, null, 10`,
		},
		Texts: map[string]string{"settleLogs": subscribe.SettleLogsSQL()},
		Index: map[string]string{
			"logOfSQL": "uk_business_template_receiver", "messageLogSQL": "uk_business_template_receiver", "recordedSendSQL": "subscribe_message_sends_log",
			"historySQL": "subscribe_message_sends_log", "failedLogsSQL": "subscribe_message_logs_failed",
			"failedLogsOfCallerSQL": "subscribe_message_logs_failed_caller",
		},
		Presorted: []string{"failedLogsSQL", "failedLogsOfCallerSQL"},
	}.Require(t)
}
