package trigger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
)

// stuckAfter is how long a route may exceed its deadline. It covers short steps that set no deadline of their own.
const stuckAfter = time.Minute

// Alive, for the liveness probe, returns an error if a route is more than a minute past its deadline: only a
// restart can resolve that. Alive returns nil while NATS or functions are unavailable or refuse events, since the
// trigger recovers from that by itself.
func (t *Trigger) Alive() error {
	stuck := t.stuck(time.Now())
	if len(stuck) == 0 {
		return nil
	}
	err := errors.New("stuck: " + strings.Join(stuck, ", "))
	t.logOnce(err.Error())
	return err
}

// stuck returns the routes that are more than stuckAfter past their deadline at now.
func (t *Trigger) stuck(now time.Time) (durables []string) {
	for _, r := range t.routes {
		if due := r.deadline.Load(); due != nil && now.Sub(*due) > stuckAfter {
			durables = append(durables, r.Durable)
		}
	}
	return durables
}

// Ready, for the readiness probe, returns an error while there is no connection to NATS, while a route does not
// pull, or after the last check found that the stream WAKE stores nothing. If routes do not pull, the error names
// each of them and the cause.
func (t *Trigger) Ready() error {
	if !t.Connected() {
		return bus.ErrNotConnected
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
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wakeFailure
}

var errStarting = errors.New("starting")

// stopped returns why the route does not run; nil if it does.
func (r *route) stopped() error {
	if r.pulling.Load() {
		return nil
	}
	if failure := r.failure.Load(); failure != nil {
		return *failure
	}
	return errStarting
}

// reasonOf returns, as one word for metrics, why a stream cannot be created or a route does not run; "" if err
// is nil.
func reasonOf(err error) string {
	var streamErr *bus.StreamError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &streamErr):
		return streamErr.Reason
	case errors.Is(err, bus.ErrNotConnected):
		return "not_connected"
	case errors.Is(err, errStarting):
		return "starting"
	}
	return bus.ReasonOther
}

// Streams returns by stream the error of its last setup; nil if the setup succeeded.
func (t *Trigger) Streams() map[string]error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.streams)
}

// Connected reports whether there is a connection to NATS.
func (t *Trigger) Connected() bool { return t.bus.Connected() }

// RouteCounts counts what one route did since New. Deliveries counts POSTs, the other fields count events. In a
// route of ordered batches, Retried and Denied count the failed tries instead, each for one or more events.
type RouteCounts struct {
	Deliveries   uint64 // POSTs, those of RefusedType events included
	Acked        uint64 // accepted with 2xx, and acknowledged
	Retried      uint64 // to be delivered again, except those in Denied
	DeadLettered uint64 // refused, by the function or by matchesSubject, and recorded in DEADLETTERS or by the function
	SetAside     uint64 // refused and recorded nowhere: only the stream still has these events
	Denied       uint64 // 401, 403 or a redirect: the trigger's settings are wrong; to be delivered again
}

// RouteState is the current state of one route.
type RouteState struct {
	Durable  string
	Function string
	Pulling  bool  // the route runs: it fetches and delivers events
	Stopped  error // why the route does not run; nil while Pulling
	Posting  int64 // POSTs without a response yet
	RouteCounts
}

// Routes returns the state of each route.
func (t *Trigger) Routes() []RouteState {
	states := make([]RouteState, len(t.routes))
	for i, r := range t.routes {
		stopped := r.stopped()
		states[i] = RouteState{
			Durable: r.Durable, Function: r.Function, Pulling: stopped == nil, Stopped: stopped, Posting: r.posting.Load(),
			RouteCounts: RouteCounts{
				Deliveries: r.deliveries.Load(), Acked: r.acked.Load(), Retried: r.retried.Load(),
				DeadLettered: r.deadLettered.Load(), SetAside: r.setAside.Load(), Denied: r.denied.Load(),
			},
		}
	}
	return states
}

// Backlog counts the events in NATS that no function has accepted yet, whichever trigger delivers them.
type Backlog struct {
	Routes      map[string]RouteBacklog // by durable; only routes whose consumer exists
	DeadLetters uint64                  // events in DEADLETTERS
}

// RouteBacklog counts events of one route.
type RouteBacklog struct {
	Waiting     uint64 // not delivered to any trigger yet
	Unsettled   int    // delivered and not settled, waiting retries included
	Redelivered int    // those of Unsettled that were delivered more than once
}

// Backlog reads the backlog from NATS.
func (t *Trigger) Backlog(ctx context.Context) (Backlog, error) {
	if !t.bus.Connected() {
		return Backlog{}, bus.ErrNotConnected
	}
	conn, err := t.bus.AwaitConnection(ctx)
	if err != nil {
		return Backlog{}, err
	}
	ctx, unbind := conn.UntilLost(ctx)
	defer unbind()
	b := Backlog{Routes: map[string]RouteBacklog{}}
	dead, err := conn.JetStream().Stream(ctx, bus.StreamDeadLetters)
	switch {
	case err == nil:
		b.DeadLetters = dead.CachedInfo().State.Msgs
	case !errors.Is(err, jetstream.ErrStreamNotFound): // missing: no dead letters
		return Backlog{}, fmt.Errorf("stream %s: %w", bus.StreamDeadLetters, err)
	}
	durables := map[string][]string{} // of our routes, by stream
	for _, r := range t.routes {
		durables[r.Stream] = append(durables[r.Stream], r.Durable)
	}
	for stream, ours := range durables {
		s, err := conn.JetStream().Stream(ctx, stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return Backlog{}, fmt.Errorf("stream %s: %w", stream, err)
		}
		consumers := s.ListConsumers(ctx)
		for c := range consumers.Info() {
			if slices.Contains(ours, c.Name) {
				b.Routes[c.Name] = RouteBacklog{Waiting: c.NumPending, Unsettled: c.NumAckPending, Redelivered: c.NumRedelivered}
			}
		}
		if err := consumers.Err(); err != nil {
			return Backlog{}, fmt.Errorf("consumers of %s: %w", stream, err)
		}
	}
	return b, nil
}
