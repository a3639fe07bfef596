package bus

import (
	"context"
	"errors"
	"fmt"
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

// GapError says that messages may be missing between two of a follower's: they
// grew too old or were purged, or the stream was made anew. The follower goes on
// behind it.
type GapError struct {
	After uint64 // what the follower has
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
	safe    uint64    // up to here it has missed nothing
	current time.Time // when it last knew that

	link    *link // whose stream it reads; nil after a failure
	stream  jetstream.Stream
	next    uint64 // the first sequence that was not read; 0 = that which comes next
	gap     *GapError
	pause   time.Duration // until the next look
	failing bool          // that looks fail was logged
}

// Follow begins to read what is published to a user: what comes after a sequence,
// where 0 stands for all that is kept, or with nil what comes from now on. ErrAway
// says that NATS cannot be reached. removed gives up to which place TrimUsers has
// removed messages; it is asked where that may matter. Everything is read in a turn,
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
		raw, err := f.stream.GetMsg(ctx, f.next, jetstream.WithGetMsgSubject(f.subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			f.safe, f.current = f.next-1, time.Now()
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.subject, err)
		}
		if gap, err := f.missed(ctx, raw.Sequence); gap != nil || err != nil {
			if gap != nil {
				f.next, f.safe, f.current = gap.Next, gap.Next-1, time.Now()
				return nil, gap
			}
			return nil, err
		}
		f.next = raw.Sequence + 1
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
	switch {
	case f.next == 0:
		f.next = state.LastSeq + 1
	case f.next > state.LastSeq+1, f.next > 1 && f.next < first:
		f.gap = &GapError{After: f.next - 1, Next: first}
		f.next = first
	}
	f.safe, f.current = f.next-1, time.Time{} // the first message is looked at
	return nil
}

// lookAgain is for how long what was read last says that nothing was missed: less
// than what TrimUsers spares.
const lookAgain = 20 * time.Second

// missed says whether messages of the user between safe and next, which was found
// behind it, may have been removed: next is the oldest that is left, and the inbox
// is full, or something was removed there. An inbox loses its oldest first: while
// one from before safe is left, nothing is missing. One that reads from the beginning
// may miss what an inbox that is full, or was trimmed, has lost. A follower that reads
// as fast as messages come asks nothing.
func (f *Follower) missed(ctx context.Context, next uint64) (*GapError, error) {
	limit := f.stream.CachedInfo().Config.MaxMsgsPerSubject
	if time.Since(f.current) < lookAgain && (limit <= 0 || next-f.safe < uint64(limit)) {
		return nil, nil
	}
	oldest, err := f.stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(f.subject))
	if err != nil {
		return nil, err // next was there a moment ago
	}
	if oldest.Sequence > f.safe+1 {
		info, err := f.stream.Info(ctx, jetstream.WithSubjectFilter(f.subject))
		if err != nil {
			return nil, err
		}
		if limit > 0 && info.State.Subjects[f.subject] >= uint64(limit) {
			return &GapError{After: f.safe, Next: oldest.Sequence}, nil
		}
		if f.removed != nil {
			to, err := f.removed(ctx)
			if err != nil || to > f.safe {
				return &GapError{After: f.safe, Next: oldest.Sequence}, nil // if nobody knows, something may be missing
			}
		}
	}
	f.safe, f.current = next-1, time.Now()
	return nil, nil
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
