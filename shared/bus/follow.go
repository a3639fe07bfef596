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
	firstLook = time.Millisecond // what wakes a follower may be faster than the stream stores it
	lastLook  = 15 * time.Second // and may be lost
	lookLimit = 2 * time.Second
	troubled  = 2 * time.Second // between two looks that fail
)

// FollowedMessage is one event for a user.
type FollowedMessage struct {
	Seq   uint64 // its place in the stream, to go on after
	Event cloudevents.Event
	Done  func() // ends the turn in which it was read; it must be called
}

// Turn waits until a follower may read. done ends the turn.
type Turn func(ctx context.Context) (done func(), err error)

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
	bus     *Bus
	subject string
	sub     *nats.Subscription // on conn; nil before it is made
	conn    *nats.Conn
	woken   chan struct{}

	removed func(context.Context) (uint64, error) // see Follow
	turn    Turn
	safe    uint64    // up to here it has missed nothing, or returned the gap
	trimmed uint64    // up to here messages of the user were removed, as was last known
	unknown bool      // that could not be asked, and a gap was returned
	sure    time.Time // until when what is known of that holds
	room    int64     // so many messages may arrive after base before one is pushed out that was not read
	base    int64     // of arrived

	link    *link // whose stream it reads; nil after a failure
	stream  jetstream.Stream
	next    uint64 // the first sequence that was not read; 0 = that which comes next
	gap     *GapError
	pause   time.Duration // until the next look
	failing bool          // that looks fail was logged
}

// Follow begins to read what is published to a user: what comes after a sequence,
// where 0 stands for all that is kept, or with nil what comes from now on. ErrAway
// says that NATS cannot be reached. removed returns up to which place TrimUsers has
// removed messages of this user; it is asked when the follower begins, and every two
// seconds while it reads older messages. Everything is read in a turn,
// which lasts until the Done of a message. Close must follow.
func (b *Bus) Follow(ctx context.Context, user string, after *uint64, removed func(context.Context) (uint64, error), turn Turn) (*Follower, error) {
	l, err := b.reach(ctx)
	if err != nil {
		return nil, away(err)
	}
	f := &Follower{bus: b, subject: UserSubject(user), woken: make(chan struct{}, 1), removed: removed, turn: turn}
	if after != nil {
		f.next, f.safe = *after+1, *after
	}
	done, err := turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := l.within(ctx, lookLimit)
	defer cancel()
	if err := f.enter(ctx, l); err != nil {
		f.Close()
		return nil, away(err)
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
		l, err := f.bus.await(ctx)
		if err != nil {
			return FollowedMessage{}, err
		}
		m, err := f.lookInTurn(ctx, l)
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
		f.settle(l, err)
		f.rest(ctx, l)
	}
}

// wake never blocks: one that is kept tells of all.
func (f *Follower) wake(*nats.Msg) {
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

// lookInTurn is look in a turn, which goes on with what is returned.
func (f *Follower) lookInTurn(ctx context.Context, l *link) (m *FollowedMessage, err error) {
	done, err := f.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if m == nil {
			done()
		}
	}()
	if m, err = f.look(ctx, l); m != nil {
		m.Done = done
	}
	return m, err
}

// look reads the next event; nil when there is none yet.
func (f *Follower) look(ctx context.Context, l *link) (*FollowedMessage, error) {
	ctx, cancel := l.within(ctx, lookLimit)
	defer cancel()
	if f.link != l {
		if err := f.enter(ctx, l); err != nil {
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
		gap, err := f.missed(ctx, next)
		if err != nil {
			return nil, err
		}
		if gap != nil {
			return nil, gap
		}
		if none {
			f.upToDate(at, arrived)
			return nil, nil
		}
		f.next = next + 1
		if f.trimmed <= f.safe {
			f.safe = next
		}
		e, err := parse(attributes(raw.Header), raw.Data)
		if err == nil {
			return &FollowedMessage{Seq: raw.Sequence, Event: e}, nil
		}
		f.bus.log.Warn("a message that is no event", "subject", f.subject, "sequence", raw.Sequence, "error", err)
	}
}

// enter finds the place to read from on a connection that is new: the stream may
// be another one, or shorter at its begin or, after a crash, at its end.
func (f *Follower) enter(ctx context.Context, l *link) error {
	// The subscription comes first, so that nothing slips in between. It survives a
	// reconnect.
	if f.conn != l.conn() {
		sub, err := l.conn().Subscribe(f.subject, f.wake)
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", f.subject, err)
		}
		f.sub, f.conn = sub, l.conn()
	}
	at, arrived := time.Now(), f.arrived()
	s, err := l.js.Stream(ctx, StreamUsers)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return errMissing(StreamUsers)
	}
	if err != nil {
		return fmt.Errorf("look up stream %s: %w", StreamUsers, err)
	}
	f.link, f.stream, f.pause = l, s, firstLook
	state := s.CachedInfo().State
	first := max(state.FirstSeq, 1)
	f.room, f.sure = 0, time.Time{}
	switch {
	case f.next == 0:
		f.next = state.LastSeq + 1
		f.upToDate(at, arrived)
	case f.next > state.LastSeq+1, f.next > 1 && f.next < first:
		f.gap = f.goOn(first)
	}
	return nil
}

const (
	// youngStay is for how long after a look that found nothing new TrimUsers removes
	// nothing that came since: less than what it spares.
	youngStay = 20 * time.Second
	// noticed is for how long what removed returned holds: less than what TrimUsers
	// waits before it removes what it has noted.
	noticed = 2 * time.Second
)

// missed returns the gap if messages of the user were removed that were not read:
// before next, the first one that is left, or after all that was read where next
// is 0. TrimUsers notes what it removes of an inbox, wherever that was in it; so the
// gap is returned behind the last such place. A message that comes into a full inbox
// removes the oldest: one that was not read, unless an older one is left.
func (f *Follower) missed(ctx context.Context, next uint64) (*GapError, error) {
	if asked := time.Now(); f.removed != nil && asked.After(f.sure) {
		to, err := f.removed(ctx)
		if err != nil && next == 0 {
			return nil, fmt.Errorf("ask what was removed of %s: %w", f.subject, err)
		}
		if err != nil && !f.unknown {
			f.unknown = true
			return f.goOn(next), nil // something may be missing
		}
		if err == nil {
			f.trimmed, f.unknown = to, false
		}
		f.sure = asked.Add(noticed)
	}
	if f.trimmed > f.safe && next > f.trimmed {
		return f.goOn(next), nil
	}
	if f.trimmed > f.safe && next == 0 {
		info, err := f.stream.Info(ctx)
		if err != nil {
			return nil, fmt.Errorf("look up stream %s: %w", StreamUsers, err)
		}
		if f.trimmed <= info.State.LastSeq { // else it is a place of an earlier stream of this name
			return f.goOn(max(f.trimmed+1, f.next)), nil
		}
		f.trimmed = 0
	}
	limit := f.stream.CachedInfo().Config.MaxMsgsPerSubject
	arrived := f.arrived()
	if next == 0 || next == f.next || limit <= 0 || arrived-f.base < f.room {
		return nil, nil
	}
	info, err := f.stream.Info(ctx, jetstream.WithSubjectFilter(f.subject))
	if err != nil {
		return nil, fmt.Errorf("count %s: %w", f.subject, err)
	}
	if held := int64(info.State.Subjects[f.subject]); held < limit {
		f.room, f.base = (limit-held)/2, arrived
		return nil, nil
	}
	oldest, err := f.stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(f.subject))
	if err != nil {
		return nil, err // next was there a moment ago
	}
	if oldest.Sequence >= f.next {
		return f.goOn(oldest.Sequence), nil
	}
	return nil, nil
}

// goOn has the follower read from a place on, and returns the gap before it.
func (f *Follower) goOn(next uint64) *GapError {
	gap := &GapError{After: f.safe, Next: next}
	f.next, f.safe = next, next-1
	return gap
}

// upToDate notes that at a time everything was read, and how many messages had
// arrived before. Half of an inbox may come before one that was not read can be
// pushed out: some may be on their way.
func (f *Follower) upToDate(at time.Time, arrived int64) {
	f.safe, f.sure = f.next-1, at.Add(youngStay)
	f.room, f.base = f.stream.CachedInfo().Config.MaxMsgsPerSubject/2, arrived
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

// settle takes in that a look failed, or found nothing where err is nil. What
// failed may have been for good, so all is looked up anew.
func (f *Follower) settle(l *link, err error) {
	switch {
	case err == nil:
		f.failing = false
	case l.ctx.Err() != nil: // no failure of the look
		f.link = nil
	default:
		if !f.failing {
			f.bus.log.Warn("follow", "subject", f.subject, "error", err)
		}
		f.failing, f.link = true, nil
		f.pause = min(max(f.pause, redialWait), troubled)
	}
}

// rest waits until it is time to look again.
func (f *Follower) rest(ctx context.Context, l *link) {
	pause := time.NewTimer(f.pause)
	defer pause.Stop()
	select {
	case <-f.woken:
		f.pause = firstLook
	case <-pause.C:
		f.pause = min(2*f.pause, lastLook)
	case <-l.ctx.Done():
	case <-ctx.Done():
	}
}

// within bounds ctx by the connection and by d.
func (l *link) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, expire := context.WithTimeout(ctx, d)
	ctx, cancel := l.bound(ctx)
	return ctx, func() { cancel(); expire() }
}
