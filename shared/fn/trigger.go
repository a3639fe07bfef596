package fn

import (
	"context"

	"github.com/sendonce/sendonce/shared/metrics"
	"github.com/sendonce/sendonce/shared/trigger"
)

// RunTrigger carries events by routes until ctx ends, and returns when what was
// under way is settled, or with the reason why it could not begin. Meanwhile it
// listens where a function would, for probes and scrapes alone:
//
//   - /healthz is 503 when something here hangs, which only a restart cures (see
//     trigger.Trigger.Alive). NATS or functions that are away are no reason.
//   - /readyz is 503 while events are not carried, as without NATS, or not by all
//     routes; it names those that do not run and says why.
//   - /metrics has what was carried beside what every process counts.
func (e *Env) RunTrigger(ctx context.Context, cfg trigger.Config, routes []trigger.Route) error {
	r := e.Metrics().registry
	deliveries := r.Counter("trigger_deliveries_total", "POSTs to a function that are over; status is none when there was no answer.", "durable", "function", "status")
	durations := r.Histogram("trigger_delivery_seconds", "Time from the start of a POST to its answer, or to giving it up.", secondBuckets, "durable", "function")
	cfg.DrainTimeout = e.Config.DrainTimeout
	cfg.OnDelivery = func(d trigger.Delivery) {
		deliveries.Inc(d.Durable, d.Function, statusLabel(d.Status))
		durations.Observe(d.Took.Seconds(), d.Durable, d.Function)
	}
	t, err := trigger.New(e.bus, e.Log, cfg, routes)
	if err != nil {
		return err
	}
	gauges := triggerGauges{
		trigger: t,
		backlog: &cachedGauge[trigger.Backlog]{log: e.Log, what: "the backlog of the functions"},
		used:    &cachedGauge[map[string]float64]{log: e.Log, what: "the sizes of the streams"},
	}
	gauges.backlog.set(t.Backlog)
	gauges.used.set(t.StreamUsage)
	r.Collect(gauges.collect)
	probes, err := newMux(e, nil)
	if err != nil {
		return err
	}
	probes.alive, probes.ready = t.Alive, t.Ready
	l, err := listen(ctx, &e.Config)
	if err != nil {
		return err
	}
	if err := e.serveMetrics(ctx); err != nil {
		return err
	}
	// Probes are answered until the last event is settled; without an answer
	// to them there is no carrying either.
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		served <- newServer(e, probes).run(serving, l)
		stop()
	}()
	e.Log.Info("triggering", "functions", cfg.BaseURL)
	t.Run(ctx)
	end()
	return <-served
}

// triggerGauges show the state of a trigger, and what NATS has for it.
type triggerGauges struct {
	trigger *trigger.Trigger
	backlog *cachedGauge[trigger.Backlog]
	used    *cachedGauge[map[string]float64]
}

// collect reads from NATS only while there is a connection.
func (g triggerGauges) collect(s *metrics.Scrape) {
	connected := g.trigger.Connected()
	s.Gauge("trigger_connected", "1 while there is a connection to NATS.", oneIf(connected))
	var backlog trigger.Backlog // without a route: not known
	if connected {
		backlog, _ = g.backlog.get()
		used, _ := g.used.get() // of the streams that answered
		for stream, part := range used {
			s.Gauge("stream_used_ratio", "The part of its bytes that a stream uses, 0 to 1.", part, "stream", stream)
		}
	}
	for _, r := range g.trigger.Routes() {
		of := []string{"durable", r.Durable, "function", r.Function}
		s.Gauge("trigger_pulling", "1 while events are pulled.", oneIf(r.Pulling), of...)
		if r.Stopped != nil {
			s.Gauge("trigger_route_stopped", "1 while a route does not run, by reason: no_room, subjects_taken, not_connected, starting or error; /readyz says more.", 1,
				"durable", r.Durable, "function", r.Function, "reason", trigger.ReasonOf(r.Stopped))
		}
		s.Gauge("trigger_under_way", "POSTs to a function that are not answered yet.", float64(r.InFlight), of...)
		s.Counter("trigger_delivered_total", "Events that a function took.", float64(r.Acked), of...)
		s.Counter("trigger_retried_total", "POSTs whose events come again.", float64(r.Retried), of...)
		s.Counter("trigger_denied_total", "POSTs answered 401, 403 or a redirect: the settings of the trigger are wrong.", float64(r.Denied), of...)
		s.Counter("trigger_dead_letters_total", "Events that a function refused.", float64(r.DeadLettered), of...)
		s.Counter("trigger_set_aside_total", "Events that a function refused and that could not be kept as dead letters: their stream still has them.", float64(r.SetAside), of...)
		if b, known := backlog.Routes[r.Durable]; known {
			s.Gauge("trigger_waiting", "Events that no trigger was given yet.", float64(b.Waiting), of...)
			s.Gauge("trigger_unsettled", "Events that triggers were given, those included that wait to come again.", float64(b.Unsettled), of...)
			s.Gauge("trigger_redelivered", "Events among the unsettled that were given more than once.", float64(b.Redelivered), of...)
		}
	}
	for stream, err := range g.trigger.Streams() {
		if err != nil {
			s.Gauge("trigger_stream_missing", "1 while a stream cannot be made, by reason as in trigger_route_stopped.", 1,
				"reason", trigger.ReasonOf(err), "stream", stream)
		}
	}
	if backlog.Routes != nil {
		s.Gauge("dead_letters", "Events that functions refused, in the stream DEADLETTERS.", float64(backlog.DeadLetters))
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
