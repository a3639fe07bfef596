package trigger

import (
	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/telemetry"
)

// CollectState adds to each scrape the state of the trigger and, while there is a connection, of its streams
// in NATS.
func (t *Trigger) CollectState(m *telemetry.Metrics) {
	backlogs := telemetry.Cached(m, "the backlog of the functions", t.Backlog)
	usage := telemetry.Cached(m, "the sizes of the streams", t.bus.StreamUsage)
	m.Registry.Collect(func(s *metrics.Scrape) {
		connected := t.Connected()
		s.Flag("trigger_connected", "1 while there is a connection to NATS.", connected)
		var backlog Backlog // Routes is nil if it is unknown
		if connected {
			backlog, _ = backlogs.Get()
			used, _ := usage.Get() // of the streams that replied
			for stream, part := range used {
				s.Gauge("stream_used_ratio", "Used part of a stream's limit of bytes or of messages, whichever part is larger, 0 to 1.", part, "stream", stream)
			}
		}
		for _, r := range t.Routes() {
			r.collect(s, backlog)
		}
		for stream, err := range t.Streams() {
			if err != nil {
				s.Gauge("trigger_stream_missing", "1 while a stream cannot be created, by reason as in trigger_route_stopped.", 1,
					"reason", reasonOf(err), "stream", stream)
			}
		}
		if backlog.Routes != nil {
			s.Gauge("dead_letters", "Refused events in the stream DEADLETTERS.", float64(backlog.DeadLetters))
		}
	})
}

// collect adds the state of one route to the scrape.
func (r *RouteState) collect(s *metrics.Scrape, backlog Backlog) {
	labels := []string{"durable", r.Durable, "function", r.Function}
	s.Flag("trigger_pulling", "1 while events are pulled.", r.Pulling, labels...)
	if r.Stopped != nil {
		s.Gauge("trigger_route_stopped", "1 while a route does not run, by reason: no_room, subjects_taken, not_connected, starting or error; /readyz says more.", 1,
			"durable", r.Durable, "function", r.Function, "reason", reasonOf(r.Stopped))
	}
	s.Gauge("trigger_under_way", "POSTs to a function that have no response yet.", float64(r.Posting), labels...)
	s.Counter("trigger_delivered_total", "Events that a function accepted.", float64(r.Acked), labels...)
	s.Counter("trigger_retried_total", "Events that will be delivered again; for ordered batches the failed POSTs. Without those in trigger_denied_total.", float64(r.Retried), labels...)
	s.Counter("trigger_denied_total", "Events with response 401, 403 or a redirect; for ordered batches the POSTs. The settings of the trigger are wrong.", float64(r.Denied), labels...)
	s.Counter("trigger_dead_letters_total", "Events that were refused and recorded as dead letters.", float64(r.DeadLettered), labels...)
	s.Counter("trigger_set_aside_total", "Events that were refused and could not be recorded as dead letters: only their stream still has them.", float64(r.SetAside), labels...)
	if b, known := backlog.Routes[r.Durable]; known {
		s.Gauge("trigger_waiting", "Events that were not delivered to any trigger yet.", float64(b.Waiting), labels...)
		s.Gauge("trigger_unsettled", "Events that were delivered to a trigger and are not settled, waiting retries included.", float64(b.Unsettled), labels...)
		s.Gauge("trigger_redelivered", "Unsettled events that were delivered more than once.", float64(b.Redelivered), labels...)
	}
}
