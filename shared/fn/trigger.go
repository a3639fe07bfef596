package fn

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sendonce/sendonce/shared/bus"
)

// RunTrigger carries events by routes until ctx ends, and returns when what was
// under way is settled, or with the reason why it could not begin. Meanwhile it
// listens where a function would, for probes and scrapes alone:
//
//   - /healthz is 503 when something here hangs, which only a restart cures (see
//     bus.Trigger.Alive). NATS or functions that are away are no reason.
//   - /readyz is 503 while events are not carried, as without NATS.
//   - /metrics has what was carried beside what every process counts.
func (e *Env) RunTrigger(ctx context.Context, cfg bus.TriggerConfig, routes []bus.Route) error {
	deliveries := newDeliveries(e.Metrics().registry)
	cfg.DrainTimeout, cfg.OnDelivery = e.Config.DrainTimeout, deliveries.count
	t, err := bus.NewTrigger(e.bus, cfg, routes)
	if err != nil {
		return err
	}
	e.Metrics().registry.MustRegister(carried{t, &glance[bus.Backlog]{log: e.Log, what: "the backlog of the functions", ask: t.Backlog}})
	probes, err := newSite(e, nil)
	if err != nil {
		return err
	}
	probes.alive, probes.ready = t.Alive, t.Ready
	l, err := listen(ctx, &e.Config)
	if err != nil {
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

// deliveries counts and times the POSTs of a trigger.
type deliveries struct {
	total   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newDeliveries(r *prometheus.Registry) deliveries {
	return deliveries{
		total: registered(r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricPrefix + "trigger_deliveries_total", Help: "POSTs to a function that are over; status is none when there was no answer.",
		}, []string{"function", "durable", "status"})),
		seconds: registered(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: metricPrefix + "trigger_delivery_seconds", Help: "Time from a POST's begin to its answer, or to giving it up.",
			Buckets: buckets(1),
		}, []string{"function", "durable"})),
	}
}

func (d deliveries) count(one bus.Delivery) {
	status := "none"
	if one.Status != 0 {
		status = strconv.Itoa(one.Status)
	}
	d.total.WithLabelValues(one.Function, one.Durable, status).Inc()
	d.seconds.WithLabelValues(one.Function, one.Durable).Observe(one.Took.Seconds())
}

// carried is what a trigger says of itself, and NATS of its events, at a scrape.
type carried struct {
	trigger *bus.Trigger
	backlog *glance[bus.Backlog]
}

// Describe says nothing: what there is depends on what can be reached.
func (carried) Describe(chan<- *prometheus.Desc) {}

// Collect asks NATS only while there is a connection.
func (c carried) Collect(ch chan<- prometheus.Metric) {
	tell := telling(ch)
	connected := c.trigger.Connected()
	tell(gauge, "trigger_connected", "1 while there is a connection to NATS.", truth(connected), nil)
	var backlog bus.Backlog // without a route: nobody knows
	if connected {
		backlog, _ = c.backlog.look()
	}
	for _, r := range c.trigger.Routes() {
		of := prometheus.Labels{"function": r.Function, "durable": r.Durable}
		tell(gauge, "trigger_pulling", "1 while events are asked for.", truth(r.Pulling), of)
		tell(gauge, "trigger_under_way", "POSTs to a function that are not answered yet.", float64(r.UnderWay), of)
		tell(counter, "trigger_delivered_total", "Events that a function took.", float64(r.Acked), of)
		tell(counter, "trigger_retried_total", "POSTs whose events come again.", float64(r.Retried), of)
		tell(counter, "trigger_denied_total", "POSTs answered 401, 403 or a redirect: the settings of the trigger are wrong.", float64(r.Denied), of)
		tell(counter, "trigger_dead_letters_total", "Events that a function refused.", float64(r.DeadLettered), of)
		if b, known := backlog.Routes[r.Durable]; known {
			tell(gauge, "trigger_waiting", "Events that no trigger was given yet.", float64(b.Waiting), of)
			tell(gauge, "trigger_unsettled", "Events that triggers were given, those included that wait to come again.", float64(b.Unsettled), of)
			tell(gauge, "trigger_redelivered", "Events among the unsettled that were given more than once.", float64(b.Redelivered), of)
		}
	}
	if backlog.Routes != nil {
		tell(gauge, "dead_letters", "Events that functions refused, in the stream DEADLETTERS.", float64(backlog.DeadLetters), nil)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
