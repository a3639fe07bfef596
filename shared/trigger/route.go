package trigger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/settings"
)

// Route is one durable consumer and the event function that it feeds.
type Route struct {
	Stream       string
	Durable      string        // name of the consumer and the route
	Filters      []string      // subjects of Stream
	Function     string        // events are posted to /events/{Function}
	InFlight     int           // maximum of delivered, unsettled messages over all triggers, waiting retries included; at least 1. Unused for ordered batches
	AckWait      time.Duration // NATS redelivers a message that got no heartbeat for this time; the trigger sends a heartbeat every AckWait/3
	Timeout      time.Duration // of one POST; 0 = Config.Timeout of the trigger
	TickInterval time.Duration // between two safety ticks (wake-ups in case others were lost) on the only subject in Filters, at least 1 s; 0 = none. Only for subjects of WAKE

	InactiveThreshold time.Duration // NATS deletes a consumer that is unused for this time; 0 = never

	// If above 1, the maximum number of available messages that are fetched and posted together, in no order. Each
	// message is settled on its own. A trigger handles InFlight / UnorderedBatch such groups at once, at least one.
	UnorderedBatch int

	// If above 0, the maximum number of messages in one POST, in stream order. A batch is posted only after all
	// triggers have settled the earlier batches. Needs nats-server 2.11 or later.
	Batch     int
	BatchWait time.Duration // how long a batch waits for more after its first message
}

// Routes returns the routes of the event functions. tick is the time between two safety ticks.
func Routes(tick time.Duration) []Route {
	return []Route{
		// InFlight 2: one call can handle due tasks while the other checks alerts or closes a day.
		{Stream: bus.StreamWake, Durable: "sweep", Filters: []string{bus.WakeSweep}, Function: "sweep", InFlight: 2, AckWait: 5 * time.Second, TickInterval: tick},
		{Stream: bus.StreamWake, Durable: "relay", Filters: []string{bus.WakeRelay}, Function: "relay", InFlight: 1, AckWait: 5 * time.Second, TickInterval: tick},
		// InFlight 32: while calls wait for slow receivers, other calls handle new work. In each process of the function, one call at a
		// time claims webhooks, and one claims messages.
		{Stream: bus.StreamWake, Durable: "deliver", Filters: []string{bus.WakeDeliver}, Function: "deliver", InFlight: 32, AckWait: 5 * time.Second, TickInterval: tick},
		// InFlight 4: while one call waits for WeChat, other calls send new tasks.
		{Stream: bus.StreamWake, Durable: "wechat", Filters: []string{bus.WakeWeChat}, Function: "wechat", InFlight: 4, AckWait: 5 * time.Second, TickInterval: tick},
		{Stream: bus.StreamEvents, Durable: bus.RecordDurable, Filters: []string{bus.EventPrefix + ">"}, Function: "deliver", InFlight: 256, UnorderedBatch: 64, AckWait: 30 * time.Second},
	}
}

// saveConsumerIdle is how long NATS keeps the unused consumers of a former number of shards. If an operator returns to
// that number after this time, new consumers start at the beginning of the stream. That does no harm: saving a
// message again has no effect.
const saveConsumerIdle = 24 * time.Hour

// SaveRoutes returns the routes that post accepted messages to the function save, and to the function deliver
// if DeliverBeforeSaved is set, in order within each shard. The first route is the one for the wake-ups of save; tick is
// the time between two safety ticks on it, at least 1 s; 0 = none.
func SaveRoutes(cfg settings.TwoPhase, tick time.Duration) []Route {
	routes := []Route{{
		Stream: bus.StreamWake, Durable: "save", Filters: []string{bus.WakeSave}, Function: "save", InFlight: 1, AckWait: 5 * time.Second, TickInterval: tick,
	}}
	functions := []string{"save"}
	if cfg.DeliverBeforeSaved {
		functions = append(functions, "deliver")
	}
	for shard := range cfg.Shards {
		for _, function := range functions {
			routes = append(routes, Route{
				Stream: cmp.Or(cfg.Stream, bus.StreamAccepted), Durable: bus.ShardDurable(function, shard, cfg.Shards),
				Filters: bus.AcceptFilters(shard, cfg.Shards), InactiveThreshold: saveConsumerIdle,
				Function: function, AckWait: 5 * time.Second, Batch: cfg.BatchSize, BatchWait: cfg.BatchWait,
			})
		}
	}
	return routes
}

// priorityGroup is the priority group of ordered batches: NATS delivers all messages to one trigger until that
// trigger stops fetching.
const priorityGroup = "trigger"

func (r *Route) consumer() jetstream.ConsumerConfig {
	c := jetstream.ConsumerConfig{
		Durable:       r.Durable,
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: r.AckWait, MaxAckPending: r.InFlight, InactiveThreshold: r.InactiveThreshold,
		MaxDeliver: -1, // unlimited, see doc.go
	}
	if len(r.Filters) == 1 {
		c.FilterSubject = r.Filters[0]
	} else {
		c.FilterSubjects = r.Filters
	}
	if r.Batch > 0 {
		c.AckPolicy = jetstream.AckAllPolicy // batches are posted one at a time
		c.MaxAckPending = 2 * r.Batch        // the posted batch and the next
		c.PriorityPolicy, c.PriorityGroups = jetstream.PriorityPolicyPinned, []string{priorityGroup}
		c.PinnedTTL = r.AckWait * 3 / 2 // longer than AckWait: messages of a killed trigger are redelivered before new ones
	}
	return c
}

// route is a Route with its state.
type route struct {
	Route
	url   string
	slots chan struct{} // one for each delivery in progress; with UnorderedBatch one for each fetched group

	pullBytes int // upper limit of the bytes that one pull request returns; only for routes with batches
	repeat    repeat

	deliveries, acked, retried, deadLettered, setAside, denied atomic.Uint64 // see RouteCounts

	posting  atomic.Int64
	pulling  atomic.Bool
	failure  atomic.Pointer[error]     // why the route last stopped; nil = it has not stopped yet
	deadline atomic.Pointer[time.Time] // of the current step; nil = none
}

// repeat is the timer of repeatIfReplaced.
type repeat struct {
	mu    sync.Mutex
	timer *time.Timer // of the pending repeat; nil = none
}

func newRoute(r Route, cfg *Config) (*route, error) {
	base := strings.ReplaceAll(cfg.BaseURL, "{function}", r.Function)
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("%q is not a base URL such as http://localhost:8000", base)
	case r.Stream == "" || r.Durable == "" || len(r.Filters) == 0 || r.Function == "":
		return nil, errors.New("empty Stream, Durable, Filters or Function")
	case r.Batch < 0 || r.BatchWait < 0 || r.UnorderedBatch < 0:
		return nil, errors.New("negative Batch, BatchWait or UnorderedBatch")
	case r.InFlight < 1 && r.Batch == 0:
		return nil, errors.New("InFlight must be at least 1")
	case r.AckWait < time.Second:
		return nil, errors.New("AckWait must be at least 1s")
	case r.TickInterval != 0 && len(r.Filters) != 1:
		return nil, errors.New("a route with a TickInterval must have exactly one filter")
	case r.TickInterval != 0 && r.TickInterval < time.Second:
		return nil, errors.New("TickInterval must be 0 or at least 1s")
	}
	r.Timeout = cmp.Or(r.Timeout, cfg.Timeout)
	slots := r.InFlight
	if r.UnorderedBatch > 1 {
		slots = max(r.InFlight/r.UnorderedBatch, 1)
	}
	return &route{Route: r, url: strings.TrimRight(base, "/") + "/events/" + r.Function, slots: make(chan struct{}, slots)}, nil
}

// setDeadline sets the deadline of the current step to d from now. Alive compares the deadline with the time; there
// is no timer.
func (r *route) setDeadline(d time.Duration) {
	due := time.Now().Add(d)
	r.deadline.Store(&due)
}

// sleep waits for d or the end of ctx, and sets the deadline to match.
func (r *route) sleep(ctx context.Context, d time.Duration) {
	r.setDeadline(d)
	sleep(ctx, d)
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
