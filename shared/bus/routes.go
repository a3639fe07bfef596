package bus

import (
	"cmp"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Route is one durable consumer and the event function that it feeds.
type Route struct {
	Stream       string
	Durable      string        // name of the consumer and the route
	Filters      []string      // subjects of Stream
	Function     string        // events are posted to /events/{Function}
	InFlight     int           // deliveries of all triggers at once, waiting retries included; at least 1. Unused for ordered batches
	AckWait      time.Duration // without a heartbeat for so long, another trigger delivers; heartbeats come three times as often
	Timeout      time.Duration // of one delivery; 0 = the trigger's
	TickInterval time.Duration // of a safety tick to the only filter, at least 1 s; 0 = none. Only for subjects of WAKE

	OldInFlight int // InFlight of older versions: a consumer that still has it is updated, any other value is an operator's

	InactiveThreshold time.Duration // NATS deletes the consumer when unused for so long; 0 = never

	// Above 1: up to so many available messages go in one POST, in no order, and are settled one by
	// one. InFlight / UnorderedBatch such POSTs run at once.
	UnorderedBatch int

	// Above 0: up to so many messages go in one POST, in stream order. Across all triggers a batch is
	// posted only after earlier ones are settled; a refused batch is posted again. Needs nats-server
	// 2.11.
	Batch     int
	BatchWait time.Duration // how long a batch waits for more after its first message
}

// recordRoute is the route by which the function deliver records events.
const recordRoute = "record"

// Routes returns the routes of the event functions, with a safety tick every tick.
func Routes(tick time.Duration) []Route {
	return []Route{
		{Stream: StreamWake, Durable: "sweep", Filters: []string{WakeSweep}, Function: "sweep", InFlight: 1, AckWait: 5 * time.Second, TickInterval: tick},
		{Stream: StreamWake, Durable: "relay", Filters: []string{WakeRelay}, Function: "relay", InFlight: 1, AckWait: 5 * time.Second, TickInterval: tick},
		// While one call waits for a slow receiver, others handle new messages.
		{Stream: StreamWake, Durable: "deliver", Filters: []string{WakeDeliver}, Function: "deliver", InFlight: 4, AckWait: 5 * time.Second, TickInterval: tick},
		// While one call waits for WeChat, others send new tasks.
		{Stream: StreamWake, Durable: "wechat", Filters: []string{WakeWeChat}, Function: "wechat", InFlight: 4, AckWait: 5 * time.Second, TickInterval: tick},
		{Stream: StreamEvents, Durable: recordRoute, Filters: []string{EventPrefix + ">"}, Function: "deliver", InFlight: 256, OldInFlight: 32, UnorderedBatch: 64, AckWait: 30 * time.Second},
	}
}

// SaveConfig is how accepted messages are read from their stream.
type SaveConfig struct {
	Stream             string        // "" = ACCEPTED
	Shards             int           // as for ShardOf
	BatchSize          int           // messages in one POST
	BatchWait          time.Duration // how long a batch waits for more after its first message
	DeliverBeforeSaved bool          // feed the function deliver too
	Tick               time.Duration // safety tick of the function save, at least 1 s; 0 = none
}

// saveConsumerIdle is how long a consumer for another number of shards is kept. A consumer created
// again starts at the beginning of the stream; saving a saved message again has no effect.
const saveConsumerIdle = 24 * time.Hour

// saveDurablePrefix begins the durable names of the routes that save.
const saveDurablePrefix = "save-"

// shardsSuffix ends the durable names for a number of shards. Each number has its own, since a
// consumer must have seen all messages of its shard.
func shardsSuffix(shards int) string { return "-of-" + strconv.Itoa(shards) }

// SaveRoutes returns the routes that feed the function save with accepted messages, in order within
// each shard, and wake it by WakeSave.
func SaveRoutes(cfg SaveConfig) []Route {
	routes := []Route{{
		Stream: StreamWake, Durable: "save", Filters: []string{WakeSave}, Function: "save", InFlight: 1, AckWait: 5 * time.Second, TickInterval: cfg.Tick,
	}}
	functions := []string{"save"}
	if cfg.DeliverBeforeSaved {
		functions = append(functions, "deliver")
	}
	for shard := range cfg.Shards {
		for _, function := range functions {
			routes = append(routes, Route{
				Stream: cmp.Or(cfg.Stream, StreamAccepted), Durable: function + "-" + strconv.Itoa(shard+1) + shardsSuffix(cfg.Shards),
				Filters: acceptFilters(shard, cfg.Shards), InactiveThreshold: saveConsumerIdle,
				Function: function, AckWait: 5 * time.Second, Batch: cfg.BatchSize, BatchWait: cfg.BatchWait,
			})
		}
	}
	return routes
}

// priorityGroup is the priority group of ordered batches: NATS gives messages to one trigger until it
// stops asking.
const priorityGroup = "trigger"

func (r *Route) consumer() jetstream.ConsumerConfig {
	c := jetstream.ConsumerConfig{
		Durable:       r.Durable,
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: r.AckWait, MaxAckPending: r.InFlight, InactiveThreshold: r.InactiveThreshold,
		MaxDeliver: -1, // unlimited: a message out of deliveries would stay, unseen
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
		c.PinnedTTL = r.AckWait * 3 / 2 // longer than AckWait: messages of a dead trigger come again before new ones
	}
	return c
}
