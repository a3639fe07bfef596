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
	Durable      string        // names the consumer and this route everywhere
	Filters      []string      // the subjects of Stream that are meant
	Function     string        // events are posted to /events/{Function}
	InFlight     int           // deliveries at once, all triggers together, those that wait to come again included; at least 1. Without meaning for batches
	AckWait      time.Duration // silence of a trigger after which another delivers; heartbeats are sent three times as often
	Timeout      time.Duration // of one delivery; 0 = the trigger's
	TickInterval time.Duration // a safety tick to the only filter, at least 1 s; 0 = none. Only for subjects that Wake takes

	OldInFlight int // InFlight of older versions: a consumer that has it still is changed, any other value is an operator's

	InactiveThreshold time.Duration // the consumer is forgotten when no trigger has asked for so long; 0 = never

	// Above 1, up to so many messages that are there go in one POST, beside others and
	// in no order; each is settled by itself. InFlight / Together such POSTs are made
	// at once.
	UnorderedBatch int

	// Above 0, up to so many messages go in one POST, in their order, and none
	// goes before those ahead of it are settled, in whichever trigger. A function
	// that does not take a batch is given the same one until it does. It needs
	// nats-server 2.11 or later.
	Batch     int
	BatchWait time.Duration // for how long a batch waits for more after its first message
}

// recordRoute is the route by which deliver records events.
const recordRoute = "record"

// Routes feeds the event functions. A route with a safety tick gets one every
// tick.
func Routes(tick time.Duration) []Route {
	return []Route{
		{Stream: StreamWake, Durable: "sweep", Filters: []string{WakeSweep}, Function: "sweep", InFlight: 1, AckWait: 5 * time.Second, TickInterval: tick},
		{Stream: StreamWake, Durable: "relay", Filters: []string{WakeRelay}, Function: "relay", InFlight: 1, AckWait: 5 * time.Second, TickInterval: tick},
		// While one waits for a receiver that does not answer, others hear of what came meanwhile.
		{Stream: StreamWake, Durable: "deliver", Filters: []string{WakeDeliver}, Function: "deliver", InFlight: 4, AckWait: 5 * time.Second, TickInterval: tick},
		// Each of them sends what it claimed; while one waits for an answer, others send what came meanwhile.
		{Stream: StreamWake, Durable: "wechat", Filters: []string{WakeWeChat}, Function: "wechat", InFlight: 4, AckWait: 5 * time.Second, TickInterval: tick},
		{Stream: StreamEvents, Durable: recordRoute, Filters: []string{EventPrefix + ">"}, Function: "deliver", InFlight: 256, OldInFlight: 32, UnorderedBatch: 64, AckWait: 30 * time.Second},
	}
}

// SaveConfig says how accepted messages are taken from their stream.
type SaveConfig struct {
	Stream             string        // "" = ACCEPTED
	Shards             int           // as ShardOf is told
	BatchSize          int           // messages in one POST
	BatchWait          time.Duration // for how long a batch waits for more after its first message
	DeliverBeforeSaved bool          // feed the function deliver with them too
	Tick               time.Duration // the safety tick of the function save, at least 1 s; 0 = none
}

// saveConsumerIdle is how long what one number of shards has taken is remembered
// after there is another. A consumer that is made again begins at the start of
// the stream: what was saved before passes without effect.
const saveConsumerIdle = 24 * time.Hour

// saveDurablePrefix begins the names of the durables by which messages are saved.
const saveDurablePrefix = "save-"

// shardsSuffix ends the names of the durables of so many shards: with another number
// others are used, since each must have seen its messages from the first on.
func shardsSuffix(shards int) string { return "-of-" + strconv.Itoa(shards) }

// SaveRoutes feeds the function save with everything that is accepted, in the
// order of each shard, and wakes it by WakeSave.
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

// priorityGroup is the priority group of a route of batches: NATS gives messages to
// one of those that ask, until that has not asked for a while.
const priorityGroup = "trigger"

func (r *Route) consumer() jetstream.ConsumerConfig {
	c := jetstream.ConsumerConfig{
		Durable:       r.Durable,
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: r.AckWait, MaxAckPending: r.InFlight, InactiveThreshold: r.InactiveThreshold,
		MaxDeliver: -1, // a message that used up its deliveries would just stay, unseen
	}
	if len(r.Filters) == 1 {
		c.FilterSubject = r.Filters[0]
	} else {
		c.FilterSubjects = r.Filters
	}
	if r.Batch > 0 {
		c.AckPolicy = jetstream.AckAllPolicy // one in hand at a time, so one acknowledgement settles all before it
		c.MaxAckPending = 2 * r.Batch        // the one that is posted and the next
		c.PriorityPolicy, c.PriorityGroups = jetstream.PriorityPolicyPinned, []string{priorityGroup}
		c.PinnedTTL = r.AckWait * 3 / 2 // what a dead trigger held comes again before anything new
	}
	return c
}
