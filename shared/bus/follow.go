package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	firstPoll   = time.Millisecond // wait between the first two reads after a wake-up, then doubled: the wake-up may arrive before its message is stored
	maxPoll     = 15 * time.Second // longest wait before a read, in case a wake-up is lost
	readTimeout = 2 * time.Second
	failedPoll  = 2 * time.Second // longest wait after a failed read
)

// FollowedMessage is one event to a user.
type FollowedMessage struct {
	Seq     uint64 // in USERS; another Follow after Seq continues with the next event
	Event   cloudevents.Event
	Release func() // releases the ReadLimit; call it after the message was handled
}

// ReadLimit blocks until a follower may read. done ends the read.
type ReadLimit func(ctx context.Context) (done func(), err error)

// GapError reports that messages may be missing: they were removed or expired, the stream was created again or has
// lost its end, or readRemoved (see Follow) failed. If some messages between After and Next still existed, the
// follower has returned them before the GapError.
type GapError struct {
	After uint64 // nothing is missing up to this sequence number
	Next  uint64 // the follower continues at this sequence number
}

func (e *GapError) Error() string {
	if e.Next <= e.After {
		return fmt.Sprintf("the stream was created again or has lost its end: it was read up to %d, and is now read from %d on", e.After, e.Next)
	}
	return fmt.Sprintf("messages after %d and before %d may be missing", e.After, e.Next)
}

// Follower reads the events of one user in stream order. It must not be used concurrently.
//
// A follower has no consumer, so the server keeps no position of followers, and after an outage no consumer has to be
// created again. The follower reads the stream message by message, so a slow reader accumulates nothing. A core
// subscription to the same subject wakes the follower; all followers of the user in this process share this
// subscription. A wake-up may arrive before its message is stored. So after a wake-up the follower polls with
// growing pauses.
type Follower struct {
	bus     *Bus
	subject string
	inbox   *inboxSubscription // nil before the first subscription and after Close
	wakeUps chan struct{}

	readRemoved   func(context.Context) (uint64, error) // see Follow
	limit         ReadLimit
	completeTo    uint64    // up to this sequence number nothing is missing, or the gap was returned
	removedTo     uint64    // last result of readRemoved
	gapReported   bool      // readRemoved failed, and a gap was returned because of that
	checkAfter    time.Time // until then readRemoved need not be called
	headroom      int64     // no unread message is evicted before inbox.arrived() is arrivedBefore + headroom
	arrivedBefore int64     // inbox.arrived() when headroom was set

	readOn  *Connection // the connection of stream; nil after a failure
	stream  jetstream.Stream
	created time.Time     // of the stream
	next    uint64        // the first unread sequence number; 0 = start with new messages
	gap     *GapError     // to be returned by the next read
	poll    time.Duration // until the next read
	woken   bool          // a wake-up came, and no read since has found a message
	overdue bool          // no read found a message within about lateMessage after a wake-up
	failing bool          // reads fail, and that was logged
}

// Follow reads the messages to a user after a sequence number (0 = all in the stream, nil = only new ones).
// readRemoved returns the last sequence number of this user that TrimUsers has removed or is about to remove. While
// reads succeed on one connection, Next calls readRemoved (nil = never) at most every two seconds, and not within 20 s
// after a read that found no unread message. limit bounds parallel reads. The read of a message lasts until its Release.
// The caller must call Close. Follow returns the error of limit, or ErrUnavailable if NATS does not reply or has no
// stream USERS.
func (b *Bus) Follow(ctx context.Context, user string, after *uint64, readRemoved func(context.Context) (uint64, error), limit ReadLimit) (*Follower, error) {
	conn, err := b.connection(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	f := &Follower{bus: b, subject: UserSubject(user), wakeUps: make(chan struct{}, 1), readRemoved: readRemoved, limit: limit}
	if after != nil {
		f.next, f.completeTo = *after+1, *after
	}
	done, err := limit(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := conn.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := f.resume(ctx, conn); err != nil {
		f.Close()
		return nil, unavailable(err)
	}
	return f, nil
}

// Close ends the subscription, unless another follower of this process follows the same user.
func (f *Follower) Close() {
	if f.inbox != nil {
		f.bus.leaveInbox(f.inbox, f.wakeUps)
		f.inbox = nil
	}
}

// After returns the sequence number up to which Next has returned all messages and gaps, to pass to another Follow. So another
// Follow finds a gap again that Next has not returned yet.
func (f *Follower) After() uint64 {
	if f.gap != nil {
		return f.gap.After
	}
	return f.next - 1
}

// Next waits for the next event, also while NATS is unavailable. After a *GapError, call Next again.
// Any error except a *GapError means that ctx has ended or the Bus was closed.
func (f *Follower) Next(ctx context.Context) (FollowedMessage, error) {
	for {
		conn, err := f.bus.AwaitConnection(ctx)
		if err != nil {
			return FollowedMessage{}, err
		}
		m, err := f.readLimited(ctx, conn)
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
			return FollowedMessage{}, ErrNotConnected
		}
		f.afterRead(conn, err)
		f.awaitNext(ctx, conn)
	}
}

// readLimited calls read when limit allows. If read returns a message, its Release ends the read.
func (f *Follower) readLimited(ctx context.Context, conn *Connection) (m *FollowedMessage, err error) {
	done, err := f.limit(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if m == nil {
			done()
		}
	}()
	if m, err = f.read(ctx, conn); m != nil {
		m.Release = done
	}
	return m, err
}

// read returns the next event; nil if there is none yet.
func (f *Follower) read(ctx context.Context, conn *Connection) (*FollowedMessage, error) {
	ctx, cancel := conn.WithTimeout(ctx, readTimeout)
	defer cancel()
	if f.readOn != conn {
		if err := f.resume(ctx, conn); err != nil {
			return nil, err
		}
	}
	if f.overdue {
		if err := f.findNewStream(ctx, conn); err != nil {
			return nil, err
		}
	}
	if gap := f.gap; gap != nil {
		f.gap = nil
		return nil, gap
	}
	for {
		at, arrived := time.Now(), f.inbox.arrived()
		raw, err := f.stream.GetMsg(ctx, f.next, jetstream.WithGetMsgSubject(f.subject))
		noMessage := errors.Is(err, jetstream.ErrMsgNotFound)
		if err != nil && !noMessage {
			return nil, fmt.Errorf("read %s: %w", f.subject, err)
		}
		var next uint64
		if !noMessage {
			next = raw.Sequence
		}
		gap, err := f.findGap(ctx, next)
		switch {
		case err != nil:
			return nil, err
		case gap != nil:
			return nil, gap
		case noMessage:
			f.markComplete(at, arrived)
			return nil, nil
		}
		f.next, f.woken = next+1, false
		if f.removedTo <= f.completeTo {
			f.completeTo = next
		}
		e, err := parseEvent(Attributes(raw.Header), raw.Data)
		if err == nil {
			return &FollowedMessage{Seq: raw.Sequence, Event: e}, nil
		}
		f.bus.log.Warn("skipped a message that is not an event", "subject", f.subject, "sequence", raw.Sequence, "error", err)
	}
}

// resume finds the position on a new connection, or after a failed read. Meanwhile the stream may have been created
// again, may have lost its oldest messages, or after a crash its newest.
func (f *Follower) resume(ctx context.Context, conn *Connection) error {
	// Subscribe first, so that no message is missed. The subscription survives a reconnect.
	if f.inbox == nil || f.inbox.key.nc != conn.nats() {
		f.Close()
		inbox, err := f.bus.joinInbox(inboxKey{conn.nats(), f.subject}, f.wakeUps)
		if err != nil {
			return err
		}
		f.inbox = inbox
	}
	at, arrived := time.Now(), f.inbox.arrived()
	s, err := conn.js.Stream(ctx, StreamUsers)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return errStreamMissing(StreamUsers)
	}
	if err != nil {
		return fmt.Errorf("look up stream %s: %w", StreamUsers, err)
	}
	info := s.CachedInfo()
	state, createdAgain := info.State, !f.created.IsZero() && !f.created.Equal(info.Created)
	f.readOn, f.stream, f.created, f.poll, f.woken, f.overdue = conn, s, info.Created, firstPoll, false, false
	first := max(state.FirstSeq, 1)
	f.headroom, f.arrivedBefore, f.checkAfter = 0, 0, time.Time{}
	switch {
	case f.next == 0:
		f.next = state.LastSeq + 1
		f.markComplete(at, arrived)
	case createdAgain, f.next > state.LastSeq+1, f.next > 1 && f.next < first:
		f.gap = f.skipTo(first)
	}
	return nil
}

// findNewStream continues at the beginning of the stream if, on this connection, the stream was created again or has lost its end.
func (f *Follower) findNewStream(ctx context.Context, conn *Connection) error {
	f.overdue = false
	s, err := conn.js.Stream(ctx, StreamUsers)
	if err != nil {
		return fmt.Errorf("look up stream %s: %w", StreamUsers, err)
	}
	if info := s.CachedInfo(); !f.created.Equal(info.Created) || f.next > info.State.LastSeq+1 {
		f.stream, f.created, f.gap = s, info.Created, f.skipTo(max(info.State.FirstSeq, 1))
		f.headroom, f.arrivedBefore, f.checkAfter = 0, 0, time.Time{}
	}
	return nil
}

const (
	// untrimmedFor is how long readRemoved is not called after a read that found no message. It is less than
	// usersKeptLeast, the age below which TrimUsers removes no message.
	untrimmedFor = 20 * time.Second
	// removedValid is how long a result of readRemoved is valid. It is less than trimNotice, the time between the change of
	// that result and the removal.
	removedValid = 2 * time.Second
)

// findGap returns the gap if unread messages to the user were removed, and nil if not. next is the sequence number of
// the first unread message that is left, or 0 if none is left. Of the messages that TrimUsers removes from an inbox,
// only the last sequence number is known. So the follower first returns the messages up to that number that are left,
// and then the gap.
func (f *Follower) findGap(ctx context.Context, next uint64) (*GapError, error) {
	if gap, err := f.refreshRemoved(ctx, next); gap != nil || err != nil {
		return gap, err
	}
	if f.removedTo > f.completeTo && next > f.removedTo {
		return f.skipTo(next), nil
	}
	if f.removedTo > f.completeTo && next == 0 {
		info, err := f.stream.Info(ctx)
		if err != nil {
			return nil, fmt.Errorf("look up stream %s: %w", StreamUsers, err)
		}
		if f.removedTo <= info.State.LastSeq { // otherwise it is a number of an earlier stream of this name
			return f.skipTo(max(f.removedTo+1, f.next)), nil
		}
		f.removedTo = 0
	}
	return f.findEviction(ctx, next)
}

// refreshRemoved calls readRemoved if the last result is no longer valid. If readRemoved fails, messages may
// be missing. Then refreshRemoved returns a gap before next, but only one gap until readRemoved succeeds. If
// next is 0, refreshRemoved returns the error instead.
func (f *Follower) refreshRemoved(ctx context.Context, next uint64) (*GapError, error) {
	now := time.Now()
	if f.readRemoved == nil || !now.After(f.checkAfter) {
		return nil, nil
	}
	to, err := f.readRemoved(ctx)
	switch {
	case err == nil:
		f.removedTo, f.gapReported = to, false
	case next == 0:
		return nil, fmt.Errorf("read the last removed sequence number of %s: %w", f.subject, err)
	case !f.gapReported:
		f.gapReported = true
		return f.skipTo(next), nil
	}
	f.checkAfter = now.Add(removedValid)
	return nil, nil
}

// findEviction returns the gap if unread messages were evicted. A message to a full inbox evicts the oldest
// message of the inbox, so while a message before f.next is left, no unread message was evicted.
func (f *Follower) findEviction(ctx context.Context, next uint64) (*GapError, error) {
	limit := f.stream.CachedInfo().Config.MaxMsgsPerSubject
	arrived := f.inbox.arrived()
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
		return nil, err // next existed a moment ago
	}
	if oldest.Sequence < f.next {
		return nil, nil
	}
	return f.skipTo(oldest.Sequence), nil
}

// skipTo continues at next and returns the gap before it.
func (f *Follower) skipTo(next uint64) *GapError {
	gap := &GapError{After: f.completeTo, Next: next}
	f.next, f.completeTo = next, next-1
	return gap
}

// markComplete records that everything was read at a time when inbox.arrived() returned arrived. From then on, no
// unread message is evicted before half as many messages have arrived as an inbox holds; the other half is for
// messages that are stored and have not arrived yet.
func (f *Follower) markComplete(at time.Time, arrived int64) {
	f.completeTo, f.checkAfter = f.next-1, at.Add(untrimmedFor)
	f.headroom, f.arrivedBefore = f.stream.CachedInfo().Config.MaxMsgsPerSubject/2, arrived
}

// afterRead handles a read that returned no message: there was none (err is nil), or the read failed. After a failure
// the next read looks the stream up again.
func (f *Follower) afterRead(conn *Connection, err error) {
	switch {
	case err == nil:
		f.failing = false
	case conn.Lost(): // not a failure of the read
		f.readOn = nil
	default:
		if !f.failing {
			f.bus.log.Warn("cannot read the messages to a user: trying again", "subject", f.subject, "error", err)
		}
		f.failing, f.readOn = true, nil
		f.poll = min(max(f.poll, redialWait), failedPoll)
	}
}

// lateMessage is how long after a wake-up its message may appear. If no read finds a message by then, the stream may have
// been created again.
const lateMessage = time.Second

// awaitNext waits until it is time for the next read: after f.poll, a wake-up or the loss of the connection.
func (f *Follower) awaitNext(ctx context.Context, conn *Connection) {
	select {
	case <-f.wakeUps:
		f.poll, f.woken = firstPoll, true
	case <-time.After(f.poll):
		if f.woken && f.poll >= lateMessage {
			f.woken, f.overdue = false, true
		}
		f.poll = min(2*f.poll, maxPoll)
	case <-conn.ctx.Done():
	case <-ctx.Done():
	}
}
