package bus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	firstPoll   = time.Millisecond // what wakes a follower may be faster than the stream stores it
	maxPoll     = 15 * time.Second // and may be lost
	readTimeout = 2 * time.Second
	failedPoll  = 2 * time.Second // between two looks that fail
)

// FollowedMessage is one event for a user.
type FollowedMessage struct {
	Seq     uint64 // its place in the stream, to go on after
	Event   cloudevents.Event
	Release func() // ends the turn in which it was read; it must be called
}

// ReadLimit waits until a follower may read. done ends the turn.
type ReadLimit func(ctx context.Context) (done func(), err error)

// GapError says that messages are missing between two places: they were removed or
// grew too old, or the stream was made anew. Where some in the middle were removed, it
// comes behind those that are left. The follower goes on behind it.
type GapError struct {
	After uint64 // up to there it has everything
	Next  uint64 // where it goes on
}

// Error names both ends of the gap.
func (e *GapError) Error() string {
	if e.Next <= e.After {
		return fmt.Sprintf("the stream has not reached %d: it was made anew, and is read from %d on", e.After, e.Next)
	}
	return fmt.Sprintf("what came after %d and before %d is no longer kept", e.After, e.Next)
}

// Follower reads what is published to one user, in the order of the stream. It
// belongs to one goroutine at a time.
//
// It has no consumer: the server keeps nothing for it, and it needs none made
// again when the server, or its leader, was away. It reads the stream message by
// message, so a slow reader piles nothing up. What wakes it is the message itself
// on its way into the stream, to which it subscribes on the connection that all
// share; until the message is stored it looks again and again, ever more rarely.
type Follower struct {
	bus          *Bus
	subject      string
	sub          *nats.Subscription // on conn; nil before it is made
	subscribedOn *nats.Conn
	wakeUps      chan struct{}

	removed       func(context.Context) (uint64, error) // see Follow
	limit         ReadLimit
	completeTo    uint64    // up to here it has missed nothing, or returned the gap
	removedTo     uint64    // up to here messages of the user were removed, as was last known
	gapReported   bool      // that could not be asked, and a gap was returned
	checkAfter    time.Time // until when what is known of that holds
	headroom      int64     // so many messages may arrive after base before one is pushed out that was not read
	arrivedBefore int64     // of arrived

	readOn  *connection // whose stream it reads; nil after a failure
	stream  jetstream.Stream
	next    uint64 // the first sequence that was not read; 0 = that which comes next
	gap     *GapError
	poll    time.Duration // until the next look
	failing bool          // that looks fail was logged
}

// Follow begins to read what is published to a user: what comes after a sequence,
// where 0 stands for all that is kept, or with nil what comes from now on. ErrUnavailable
// says that NATS cannot be reached. removed returns up to which place TrimUsers has
// removed messages of this user; it is asked when the follower begins, and every two
// seconds while it reads older messages. Everything is read in a turn,
// which lasts until the Done of a message. Close must follow.
func (b *Bus) Follow(ctx context.Context, user string, after *uint64, removed func(context.Context) (uint64, error), turn ReadLimit) (*Follower, error) {
	l, err := b.connection(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	f := &Follower{bus: b, subject: UserSubject(user), wakeUps: make(chan struct{}, 1), removed: removed, limit: turn}
	if after != nil {
		f.next, f.completeTo = *after+1, *after
	}
	done, err := turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := l.withTimeout(ctx, readTimeout)
	defer cancel()
	if err := f.resume(ctx, l); err != nil {
		f.Close()
		return nil, unavailable(err)
	}
	return f, nil
}

// Close ends the subscription.
func (f *Follower) Close() {
	if f.sub == nil {
		return
	}
	if err := f.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		f.bus.log.Warn("stop following", "subject", f.subject, "error", err)
	}
}

// After is the sequence up to which everything was read: what to follow after to
// go on here.
func (f *Follower) After() uint64 { return f.next - 1 }

// Next waits for the next event. *GapError says that some may be missing before
// it; call Next again. While NATS is away it waits. Other errors are those of ctx,
// and the end of the Bus.
func (f *Follower) Next(ctx context.Context) (FollowedMessage, error) {
	for {
		l, err := f.bus.awaitConnection(ctx)
		if err != nil {
			return FollowedMessage{}, err
		}
		m, err := f.readLimited(ctx, l)
		if err == nil && m != nil {
			return *m, nil
		}
		var gap *GapError
		switch {
		case errors.As(err, &gap):
			return FollowedMessage{}, gap
		case ctx.Err() != nil:
			return FollowedMessage{}, ctx.Err()
		case f.bus.closing.Err() != nil:
			return FollowedMessage{}, errNotConnected
		}
		f.afterRead(l, err)
		f.awaitNext(ctx, l)
	}
}

// onMessage never blocks: one that is kept tells of all.
func (f *Follower) onMessage(*nats.Msg) {
	select {
	case f.wakeUps <- struct{}{}:
	default:
	}
}

// readLimited is look in a turn, which goes on with what is returned.
func (f *Follower) readLimited(ctx context.Context, l *connection) (m *FollowedMessage, err error) {
	done, err := f.limit(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if m == nil {
			done()
		}
	}()
	if m, err = f.read(ctx, l); m != nil {
		m.Release = done
	}
	return m, err
}

// read reads the next event; nil when there is none yet.
func (f *Follower) read(ctx context.Context, l *connection) (*FollowedMessage, error) {
	ctx, cancel := l.withTimeout(ctx, readTimeout)
	defer cancel()
	if f.readOn != l {
		if err := f.resume(ctx, l); err != nil {
			return nil, err
		}
	}
	if gap := f.gap; gap != nil {
		f.gap = nil
		return nil, gap
	}
	for {
		at, arrived := time.Now(), f.arrived()
		raw, err := f.stream.GetMsg(ctx, f.next, jetstream.WithGetMsgSubject(f.subject))
		none := errors.Is(err, jetstream.ErrMsgNotFound)
		if err != nil && !none {
			return nil, fmt.Errorf("read %s: %w", f.subject, err)
		}
		var next uint64
		if !none {
			next = raw.Sequence
		}
		gap, err := f.findGap(ctx, next)
		if err != nil {
			return nil, err
		}
		if gap != nil {
			return nil, gap
		}
		if none {
			f.markComplete(at, arrived)
			return nil, nil
		}
		f.next = next + 1
		if f.removedTo <= f.completeTo {
			f.completeTo = next
		}
		e, err := parseEvent(attributesOf(raw.Header), raw.Data)
		if err == nil {
			return &FollowedMessage{Seq: raw.Sequence, Event: e}, nil
		}
		f.bus.log.Warn("a message that is no event", "subject", f.subject, "sequence", raw.Sequence, "error", err)
	}
}

// resume finds the place to read from on a connection that is new: the stream may
// be another one, or shorter at its begin or, after a crash, at its end.
func (f *Follower) resume(ctx context.Context, l *connection) error {
	// The subscription comes first, so that nothing slips in between. It survives a
	// reconnect.
	if f.subscribedOn != l.nats() {
		sub, err := l.nats().Subscribe(f.subject, f.onMessage)
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", f.subject, err)
		}
		f.sub, f.subscribedOn = sub, l.nats()
	}
	at, arrived := time.Now(), f.arrived()
	s, err := l.js.Stream(ctx, StreamUsers)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return errStreamMissing(StreamUsers)
	}
	if err != nil {
		return fmt.Errorf("look up stream %s: %w", StreamUsers, err)
	}
	f.readOn, f.stream, f.poll = l, s, firstPoll
	state := s.CachedInfo().State
	first := max(state.FirstSeq, 1)
	f.headroom, f.checkAfter = 0, time.Time{}
	switch {
	case f.next == 0:
		f.next = state.LastSeq + 1
		f.markComplete(at, arrived)
	case f.next > state.LastSeq+1, f.next > 1 && f.next < first:
		f.gap = f.skipTo(first)
	}
	return nil
}

const (
	// youngestKept is for how long after a look that found nothing new TrimUsers removes
	// nothing that came since: less than what it spares.
	youngestKept = 20 * time.Second
	// removedValid is for how long what removed returned holds: less than what TrimUsers
	// waits before it removes what it has noted.
	removedValid = 2 * time.Second
)

// findGap returns the gap if messages of the user were removed that were not read:
// before next, the first one that is left, or after all that was read where next
// is 0. TrimUsers notes what it removes of an inbox, wherever that was in it; so the
// gap is returned behind the last such place. A message that comes into a full inbox
// removes the oldest: one that was not read, unless an older one is left.
func (f *Follower) findGap(ctx context.Context, next uint64) (*GapError, error) {
	if asked := time.Now(); f.removed != nil && asked.After(f.checkAfter) {
		to, err := f.removed(ctx)
		if err != nil && next == 0 {
			return nil, fmt.Errorf("ask what was removed of %s: %w", f.subject, err)
		}
		if err != nil && !f.gapReported {
			f.gapReported = true
			return f.skipTo(next), nil // something may be missing
		}
		if err == nil {
			f.removedTo, f.gapReported = to, false
		}
		f.checkAfter = asked.Add(removedValid)
	}
	if f.removedTo > f.completeTo && next > f.removedTo {
		return f.skipTo(next), nil
	}
	if f.removedTo > f.completeTo && next == 0 {
		info, err := f.stream.Info(ctx)
		if err != nil {
			return nil, fmt.Errorf("look up stream %s: %w", StreamUsers, err)
		}
		if f.removedTo <= info.State.LastSeq { // else it is a place of an earlier stream of this name
			return f.skipTo(max(f.removedTo+1, f.next)), nil
		}
		f.removedTo = 0
	}
	limit := f.stream.CachedInfo().Config.MaxMsgsPerSubject
	arrived := f.arrived()
	if next == 0 || next == f.next || limit <= 0 || arrived-f.arrivedBefore < f.headroom {
		return nil, nil
	}
	info, err := f.stream.Info(ctx, jetstream.WithSubjectFilter(f.subject))
	if err != nil {
		return nil, fmt.Errorf("count %s: %w", f.subject, err)
	}
	if held := int64(info.State.Subjects[f.subject]); held < limit {
		f.headroom, f.arrivedBefore = (limit-held)/2, arrived
		return nil, nil
	}
	oldest, err := f.stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(f.subject))
	if err != nil {
		return nil, err // next was there a moment ago
	}
	if oldest.Sequence >= f.next {
		return f.skipTo(oldest.Sequence), nil
	}
	return nil, nil
}

// skipTo has the follower read from a place on, and returns the gap before it.
func (f *Follower) skipTo(next uint64) *GapError {
	gap := &GapError{After: f.completeTo, Next: next}
	f.next, f.completeTo = next, next-1
	return gap
}

// markComplete notes that at a time everything was read, and how many messages had
// arrived before. Half of an inbox may come before one that was not read can be
// pushed out: some may be on their way.
func (f *Follower) markComplete(at time.Time, arrived int64) {
	f.completeTo, f.checkAfter = f.next-1, at.Add(youngestKept)
	f.headroom, f.arrivedBefore = f.stream.CachedInfo().Config.MaxMsgsPerSubject/2, arrived
}

// arrived is how many messages to the user the subscription has received.
func (f *Follower) arrived() int64 {
	delivered, err := f.sub.Delivered()
	waiting, _, also := f.sub.Pending()
	if err != nil || also != nil {
		return math.MaxInt64 // the connection is ending
	}
	return delivered + int64(waiting)
}

// afterRead takes in that a look failed, or found nothing where err is nil. What
// failed may have been for good, so all is looked up anew.
func (f *Follower) afterRead(l *connection, err error) {
	switch {
	case err == nil:
		f.failing = false
	case l.ctx.Err() != nil: // no failure of the look
		f.readOn = nil
	default:
		if !f.failing {
			f.bus.log.Warn("follow", "subject", f.subject, "error", err)
		}
		f.failing, f.readOn = true, nil
		f.poll = min(max(f.poll, redialWait), failedPoll)
	}
}

// awaitNext waits until it is time to look again.
func (f *Follower) awaitNext(ctx context.Context, l *connection) {
	pause := time.NewTimer(f.poll)
	defer pause.Stop()
	select {
	case <-f.wakeUps:
		f.poll = firstPoll
	case <-pause.C:
		f.poll = min(2*f.poll, maxPoll)
	case <-l.ctx.Done():
	case <-ctx.Done():
	}
}

// withTimeout bounds ctx by the connection and by d.
func (l *connection) withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, expire := context.WithTimeout(ctx, d)
	ctx, cancel := l.untilLost(ctx)
	return ctx, func() { cancel(); expire() }
}
