package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// stuckAfter is how long a route may overrun what it is at. It covers the short
// steps, which are not timed.
const stuckAfter = time.Minute

// setDeadline says that the route gets on within d. It costs no timer: who asks
// compares.
func (r *route) setDeadline(d time.Duration) {
	due := time.Now().Add(d)
	r.deadline.Store(&due)
}

// sleep waits for d or the end of ctx.
func (r *route) sleep(ctx context.Context, d time.Duration) {
	r.setDeadline(d)
	sleep(ctx, d)
}

// Alive fails when a route has not got on for a minute longer than what it is at
// may take: something here hangs, and only a restart cures that. Who restarts us
// may ask for this alone. That NATS is away is no reason, nor that a function
// hangs, is away or refuses: we go on by ourselves as soon as they do, and a
// restart would only lose what is under way.
func (t *Trigger) Alive() error {
	stuck := t.stuck(time.Now())
	if len(stuck) == 0 {
		return nil
	}
	err := errors.New("stuck: " + strings.Join(stuck, ", "))
	t.logOnce(err.Error())
	return err
}

// stuck names the routes that are overdue at now.
func (t *Trigger) stuck(now time.Time) (durables []string) {
	for _, r := range t.routes {
		if due := r.deadline.Load(); due != nil && now.Sub(*due) > stuckAfter {
			durables = append(durables, r.Durable)
		}
	}
	return durables
}

// Ready fails while events are not carried: without a connection to NATS, or
// while a route has no consumer that it asks for events. It names each such route
// and says why. Who replaces triggers by others waits for it.
func (t *Trigger) Ready() error {
	if !t.Connected() {
		return errNotConnected
	}
	var stopped []string
	for _, state := range t.Routes() {
		if state.Stopped != nil {
			stopped = append(stopped, fmt.Sprintf("%s (%v)", state.Durable, state.Stopped))
		}
	}
	if len(stopped) > 0 {
		return errors.New("these routes do not run: " + strings.Join(stopped, ", "))
	}
	return nil
}

var (
	errStarting = errors.New("starting")
	errEnding   = errors.New("ending")
)

// stopped says why the route does not run; nil when it does.
func (r *route) stopped() error {
	if r.pulling.Load() {
		return nil
	}
	if failure := r.failure.Load(); failure != nil {
		return *failure
	}
	return errStarting
}

// ReasonOf is one of the constants that begin with Reason, or "" for no error.
func ReasonOf(err error) string {
	var cannot *StreamError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &cannot):
		return cannot.Reason
	case errors.Is(err, errNotConnected):
		return ReasonNotConnected
	case errors.Is(err, errStarting):
		return ReasonStarting
	}
	return ReasonOther
}

// Streams says of each stream why it is not as it should be; nil when it is.
func (t *Trigger) Streams() map[string]error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.streams)
}

// Connected says whether there is a connection to NATS.
func (t *Trigger) Connected() bool {
	t.bus.mu.Lock()
	defer t.bus.mu.Unlock()
	return t.bus.current != nil
}

// RouteCounts is what happened to the deliveries of one route since Run began.
// A delivery is one POST; Retried, DeadLettered and Denied say how those ended
// that are not Acked. Where a POST carries a batch, Acked and DeadLettered count
// its events.
type RouteCounts struct {
	Deliveries   uint64
	Acked        uint64 // answered 2xx and settled
	Retried      uint64 // asked to come again
	DeadLettered uint64 // refused by the function, and kept as dead letters
	SetAside     uint64 // refused, and kept by their stream alone
	Denied       uint64 // 401, 403 or a redirect: our own settings are wrong
}

// RouteState is one route at this moment.
type RouteState struct {
	Durable  string
	Function string
	Pulling  bool  // its consumer is asked for events
	Stopped  error // why not; nil while it is
	InFlight int64 // deliveries that are not answered yet
	RouteCounts
}

// Routes tells how each route is.
func (t *Trigger) Routes() []RouteState {
	states := make([]RouteState, len(t.routes))
	for i, r := range t.routes {
		stopped := r.stopped()
		states[i] = RouteState{
			Durable: r.Durable, Function: r.Function, Pulling: stopped == nil, Stopped: stopped, InFlight: r.inFlight.Load(),
			RouteCounts: RouteCounts{
				Deliveries: r.deliveries.Load(), Acked: r.acked.Load(), Retried: r.retried.Load(),
				DeadLettered: r.deadLettered.Load(), SetAside: r.setAside.Load(), Denied: r.denied.Load(),
			},
		}
	}
	return states
}

// Backlog is what NATS holds for the functions, whichever trigger has it in hand.
type Backlog struct {
	Routes      map[string]RouteBacklog // by durable; those that NATS does not know are left out
	DeadLetters uint64                  // events in DEADLETTERS
}

// RouteBacklog counts events of one route.
type RouteBacklog struct {
	Waiting     uint64 // that no trigger was given yet
	Unsettled   int    // that triggers were given, those included that wait to come again
	Redelivered int    // those of Unsettled that were given more than once
}

// Backlog asks NATS.
func (t *Trigger) Backlog(ctx context.Context) (Backlog, error) {
	l, err := t.bus.connection(ctx)
	if err != nil {
		return Backlog{}, err
	}
	ctx, unbind := l.untilLost(ctx)
	defer unbind()
	b := Backlog{Routes: map[string]RouteBacklog{}}
	dead, err := l.js.Stream(ctx, StreamDeadLetters)
	switch {
	case err == nil:
		b.DeadLetters = dead.CachedInfo().State.Msgs
	case !errors.Is(err, jetstream.ErrStreamNotFound): // it could not be made, then it has none
		return Backlog{}, fmt.Errorf("stream %s: %w", StreamDeadLetters, err)
	}
	ours, asked := map[string]bool{}, map[string]bool{}
	for _, r := range t.routes {
		ours[r.Stream+"/"+r.Durable] = true
	}
	for _, r := range t.routes {
		if asked[r.Stream] {
			continue
		}
		asked[r.Stream] = true
		s, err := l.js.Stream(ctx, r.Stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return Backlog{}, fmt.Errorf("stream %s: %w", r.Stream, err)
		}
		if err := b.add(ctx, s, ours); err != nil {
			return Backlog{}, fmt.Errorf("consumers of %s: %w", r.Stream, err)
		}
	}
	return b, nil
}

// add counts what waits for those consumers of s that are ours.
func (b *Backlog) add(ctx context.Context, s jetstream.Stream, ours map[string]bool) error {
	consumers := s.ListConsumers(ctx)
	for c := range consumers.Info() {
		if ours[c.Stream+"/"+c.Name] {
			b.Routes[c.Name] = RouteBacklog{Waiting: c.NumPending, Unsettled: c.NumAckPending, Redelivered: c.NumRedelivered}
		}
	}
	return consumers.Err()
}
