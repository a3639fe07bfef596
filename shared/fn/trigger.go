package fn

import (
	"context"

	"github.com/sendonce/sendonce/shared/bus"
)

// RunTrigger carries events by routes until ctx ends, and returns when what was
// under way is settled, or with the reason why it could not begin. Meanwhile it
// listens where a function would, for probes and scrapes alone:
//
//   - /healthz is 503 when something here hangs, which only a restart cures (see
//     bus.Trigger.Alive). NATS or functions that are away are no reason.
//   - /readyz is 503 while events are not carried, as without NATS, or not by all
//     routes; it names those that do not run and says why.
//   - /metrics has what was carried beside what every process counts.
func (e *Env) RunTrigger(ctx context.Context, cfg bus.TriggerConfig, routes []bus.Route) error {
	m := e.Metrics()
	deliveries := newOutcomes("durable",
		described{"trigger_deliveries_total", "POSTs to a function that are over; status is none when there was no answer."},
		described{"trigger_delivery_seconds", "Time from a POST's begin to its answer, or to giving it up."})
	m.tellAlso(deliveries.tell)
	cfg.DrainTimeout = e.Config.DrainTimeout
	cfg.OnDelivery = func(d bus.Delivery) { deliveries.add(outcome{d.Function, d.Durable, d.Status}, d.Took) }
	t, err := bus.NewTrigger(e.bus, cfg, routes)
	if err != nil {
		return err
	}
	m.tellAlso(carried{t, &glance[bus.Backlog]{log: e.Log, what: "the backlog of the functions", ask: t.Backlog},
		&glance[map[string]float64]{log: e.Log, what: "how full the streams are", ask: t.StreamsUsed}}.tell)
	probes, err := newSite(e, nil)
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

// carried is what a trigger says of itself, and NATS of its events, at a scrape.
type carried struct {
	trigger *bus.Trigger
	backlog *glance[bus.Backlog]
	used    *glance[map[string]float64]
}

// tell asks NATS only while there is a connection.
func (c carried) tell(p page) {
	connected := c.trigger.Connected()
	p.tell(gauge, "trigger_connected", "1 while there is a connection to NATS.", truth(connected), nil)
	var backlog bus.Backlog // without a route: nobody knows
	if connected {
		backlog, _ = c.backlog.look()
		used, _ := c.used.look() // where some streams do not answer, those that do
		for stream, part := range used {
			p.tell(gauge, "stream_used_ratio", "The part of its bytes that a stream uses, 0 to 1.", part, labels{"stream": stream})
		}
	}
	for _, r := range c.trigger.Routes() {
		of := labels{"function": r.Function, "durable": r.Durable}
		p.tell(gauge, "trigger_pulling", "1 while events are asked for.", truth(r.Pulling), of)
		if r.Stopped != nil {
			p.tell(gauge, "trigger_route_stopped", "1 while a route does not run, by reason: no_room, subjects_taken, not_connected, starting or error; /readyz says more.", 1,
				labels{"function": r.Function, "durable": r.Durable, "reason": bus.ReasonOf(r.Stopped)})
		}
		p.tell(gauge, "trigger_under_way", "POSTs to a function that are not answered yet.", float64(r.UnderWay), of)
		p.tell(counter, "trigger_delivered_total", "Events that a function took.", float64(r.Acked), of)
		p.tell(counter, "trigger_retried_total", "POSTs whose events come again.", float64(r.Retried), of)
		p.tell(counter, "trigger_denied_total", "POSTs answered 401, 403 or a redirect: the settings of the trigger are wrong.", float64(r.Denied), of)
		p.tell(counter, "trigger_dead_letters_total", "Events that a function refused.", float64(r.DeadLettered), of)
		p.tell(counter, "trigger_set_aside_total", "Events that a function refused and nobody could keep as dead letters: their stream still has them.", float64(r.SetAside), of)
		if b, known := backlog.Routes[r.Durable]; known {
			p.tell(gauge, "trigger_waiting", "Events that no trigger was given yet.", float64(b.Waiting), of)
			p.tell(gauge, "trigger_unsettled", "Events that triggers were given, those included that wait to come again.", float64(b.Unsettled), of)
			p.tell(gauge, "trigger_redelivered", "Events among the unsettled that were given more than once.", float64(b.Redelivered), of)
		}
	}
	for stream, err := range c.trigger.Streams() {
		if err != nil {
			p.tell(gauge, "trigger_stream_missing", "1 while a stream cannot be made, by reason as in trigger_route_stopped.", 1,
				labels{"stream": stream, "reason": bus.ReasonOf(err)})
		}
	}
	if backlog.Routes != nil {
		p.tell(gauge, "dead_letters", "Events that functions refused, in the stream DEADLETTERS.", float64(backlog.DeadLetters), nil)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
