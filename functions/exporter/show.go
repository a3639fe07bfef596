package exporter

import (
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/store/overview"
	"github.com/sendonce/sendonce/shared/task"
)

// Values of labels.
const (
	other     = "other" // all queues or apps without a value of their own
	succeeded = "succeeded"
	failed    = "failed"
)

func show(s *metrics.Scrape, v overview.Snapshot) {
	s.Gauge("snapshot_timestamp_seconds", "When Postgres was last read.", timestamp(v.At))
	s.Gauge("snapshot_counted_timestamp_seconds", "The time up to which the counters are complete.", timestamp(v.CountedTo))
	for _, q := range v.Queues {
		showQueue(s, q, label(q.Name))
	}
	for _, app := range v.Senders {
		showSender(s, app, label(app.App))
	}
	if v.OtherQueues.Live().N > 0 || v.OtherQueues.Totals.Submitted > 0 {
		showQueue(s, v.OtherQueues, other)
	}
	if v.OtherApps.Processing.N > 0 || v.OtherApps.Succeeded+v.OtherApps.Failed > 0 {
		showSender(s, v.OtherApps, other)
	}
	showMessages(s, v)
	showWebhooks(s, v.Webhooks)
	s.Gauge("dead_letters_open", "Dead letters: events that a function will never accept, and that wait for an operator.", float64(v.DeadLetters.N))
	s.Gauge("subscribe_templates_paused", "Pauses of a template of subscribe messages for one caller.", float64(v.PausedTemplates.N))
	for _, a := range v.Alerts {
		s.Gauge("alert_open", "1 for each open alert of GET /api/v1/admin/alerts.", 1, "kind", string(a.Kind), "queue", a.Queue)
	}
}

// label returns the label of a queue or app. Callers choose these names. A name that looks like the label of all others, such as
// other or other_, gets one more underscore, so that no two labels are the same.
func label(name string) string {
	if strings.TrimRight(name, "_") == other {
		return name + "_"
	}
	return name
}

func showQueue(s *metrics.Scrape, q overview.Queue, name string) {
	for _, count := range []struct {
		state task.State
		overview.Count
	}{{task.Scheduled, q.Scheduled}, {task.Pending, q.Pending.Count}, {task.Processing, q.Processing.Count}, {task.Held, q.Held.Count}} {
		s.Gauge("queue_tasks", "Tasks that are not finished. Counting stops at 100,000 tasks of one queue and state, or earlier if more than ten queues have tasks in the state. In processing, it stops at 100,000 tasks of all queues together.",
			float64(count.N), "queue", name, "state", count.state.String())
		s.Flag("queue_tasks_at_limit", "1 if counting stopped at its limit, so that there may be more tasks.", count.More, "queue", name, "state", count.state.String())
	}
	s.Gauge("queue_retries", "Pending tasks with a retry_count above 0, among the counted ones.", float64(q.Retries.N), "queue", name)
	s.Gauge("queue_oldest_pending_seconds", "Longest time that a counted pending task has been waiting for a sender.", q.Pending.Oldest.Seconds(), "queue", name)
	s.Gauge("queue_oldest_lease_seconds", "Longest time since a counted task in processing was claimed, or its lease last extended.", q.Processing.Oldest.Seconds(), "queue", name)
	s.Gauge("queue_oldest_held_seconds", "Longest time that a counted held task has been waiting for an operator.", q.Held.Oldest.Seconds(), "queue", name)
	s.Flag("queue_paused", "1 while the queue is paused.", q.Pause != nil, "queue", name)

	t := q.Totals
	s.Counter("tasks_submitted_total", "Submitted tasks.", float64(t.Submitted), "queue", name)
	s.Counter("task_claims_total", "Claims of finished tasks, at most 100 of each task; counted when a task finishes.", float64(t.Claims), "queue", name)
	s.Counter("lease_timeouts_total", "Leases that were ended because no report came in time.", float64(t.LeaseTimeouts), "queue", name)
	const finished = "Tasks that succeeded (reason none), or failed, by reason. A task that is retried by an operator is counted each time it finishes."
	s.Counter("tasks_finished_total", finished, float64(t.Succeeded), "queue", name, "outcome", succeeded, "reason", "none")
	for r := task.Rejected; r <= task.Cancelled; r++ {
		s.Counter("tasks_finished_total", finished, float64(t.Failed[r]), "queue", name, "outcome", failed, "reason", r.String())
	}
	showHistogram(s, "task_wait_seconds", "Time of finished tasks from submission, or from their send time, to the first claim.", t.Wait, name)
	showHistogram(s, "task_duration_seconds", "Time of finished tasks from submission, or from their send time, to the result; without expired and cancelled tasks.", t.Duration, name)
}

func showHistogram(s *metrics.Scrape, name, help string, h overview.Histogram, queue string) {
	counts := make([]uint64, len(h.Counts))
	for i, n := range h.Counts {
		counts[i] = uint64(max(n, 0))
	}
	s.Histogram(name, help, overview.Bounds[:], counts, h.Seconds, "queue", queue)
}

func showSender(s *metrics.Scrape, app overview.Sender, name string) {
	s.Gauge("sender_tasks", "Tasks in processing, by the sender app that claimed them. At most 100,000 of all apps are counted.", float64(app.Processing.N), "app", name)
	const reports = "Reports of success or failure that were applied, also if the task was retried later."
	s.Counter("sender_reports_total", reports, float64(app.Succeeded), "app", name, "outcome", succeeded)
	s.Counter("sender_reports_total", reports, float64(app.Failed), "app", name, "outcome", failed)
	s.Counter("sender_lease_timeouts_total", "Leases of a sender app that were ended because no report came in time.", float64(app.Timeouts), "app", name)
	if !app.LastClaim.IsZero() {
		s.Gauge("sender_last_claim_timestamp_seconds", "When a sender app last claimed a task, or extended the lease of one.", timestamp(app.LastClaim), "app", name)
	}
	if !app.LastReport.IsZero() {
		s.Gauge("sender_last_report_timestamp_seconds", "When a sender app last reported a success or failure that was applied.", timestamp(app.LastReport), "app", name)
	}
}

func showMessages(s *metrics.Scrape, v overview.Snapshot) {
	m := v.Messages
	s.Gauge("messages_due", "Messages that are due to be sent, or sent again, among at most 100,000 waiting messages to URLs and 100,000 others.", float64(m.Due.N))
	s.Gauge("messages_oldest_due_seconds", "How long the oldest due message has been due.", m.Due.Oldest.Seconds())
	const stuck = "Messages with no send left: sending = no stream or URL accepted them, sent = accepted, but not confirmed."
	s.Gauge("messages_stuck", stuck, float64(m.StuckSending.N), "state", "sending")
	s.Gauge("messages_stuck", stuck, float64(m.StuckSent.N), "state", "sent")
	s.Gauge("events_unpublished", "Rows of event_outbox, each with one or more events that the relay has not published yet.", float64(v.Events.N))
	s.Gauge("events_oldest_unpublished_seconds", "How long the oldest row of event_outbox has been waiting.", v.Events.Oldest.Seconds())
	for _, stream := range v.PausedStreams {
		s.Gauge("stream_paused", "1 while a stream is paused: when it was last tried, it was full, had no leader or did not respond.", 1, "stream", stream)
	}
}

func showWebhooks(s *metrics.Scrape, w overview.Webhooks) {
	s.Gauge("webhook_deliveries_due", "Webhooks that are due now, among at most 100,000 that wait.", float64(w.Due.N))
	s.Gauge("webhook_oldest_due_seconds", "How long the oldest due webhook has been due.", w.Due.Oldest.Seconds())
	s.Gauge("webhook_deliveries_retrying", "Webhooks whose last try failed and that are tried again later.", float64(w.Retrying.N))
	const finished = "Webhooks that were delivered, or that failed: after the last try, or because their endpoint was deleted."
	s.Counter("webhook_deliveries_total", finished, float64(w.Delivered), "outcome", "delivered")
	s.Counter("webhook_deliveries_total", finished, float64(w.Failed), "outcome", failed)
	s.Gauge("webhook_endpoints_failing", "Enabled endpoints to which nothing was delivered since their last failure.", float64(w.Failing))
	s.Gauge("webhook_endpoints_disabled", "Endpoints that are disabled: by an admin or their caller, because that caller was revoked, or because of their responses.", float64(w.Disabled))
}

func showStreams(s *metrics.Scrape, u usage) {
	if u.at.IsZero() {
		return
	}
	s.Gauge("streams_timestamp_seconds", "When the usage of the streams was last read from NATS.", timestamp(u.at))
	for stream, part := range u.used {
		s.Gauge("stream_used_ratio", "Used part of a stream's limit of bytes or of messages, whichever part is larger, 0 to 1.", part, "stream", stream)
	}
}

func timestamp(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
