package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
)

// forgetAtOnce is how many deletions are under way at a time: each waits for the
// stream's replicas.
const forgetAtOnce = 16

// Walk calls each with the messages after the sequence after, oldest first, at
// most limit of them. last is the sequence of the last one, or after when there
// was none. Fewer calls than limit mean that the end was reached, which may lag
// a moment behind Accept.
func (b *Bus) Walk(ctx context.Context, after uint64, limit int, each func(AcceptedMessage)) (last uint64, err error) {
	s, err := b.accepted(ctx)
	if err != nil {
		return after, err
	}
	last = after
	for range limit {
		raw, err := s.GetMsg(ctx, last+1, jetstream.WithGetMsgSubject(acceptPrefix+">"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			return last, away(fmt.Errorf("get the message after %d: %w", last, err))
		}
		last = raw.Sequence
		m, err := acceptedOf(raw.Sequence, raw.Time, raw.Header, raw.Data)
		if err != nil {
			b.log.Warn("what is in the stream of accepted messages is no event", "sequence", raw.Sequence, "error", err)
			continue
		}
		each(*m)
	}
	return last, nil
}

// Place is where the stream holds the message with an id.
type Place struct {
	ID  string
	Seq uint64
}

// Forget deletes the messages at these places; those that are gone already are
// no error. Their subjects take messages again, so it is only for those that
// are saved, and past the time in which somebody may repeat them. A consumer that
// has not had them yet never gets them.
func (b *Bus) Forget(ctx context.Context, places []Place) error {
	s, err := b.accepted(ctx)
	if err != nil {
		return err
	}
	errs := make([]error, len(places))
	slots := make(chan struct{}, forgetAtOnce)
	var deleting sync.WaitGroup
	for i, place := range places {
		slots <- struct{}{}
		deleting.Go(func() {
			errs[i] = forget(ctx, s, place)
			<-slots
		})
	}
	deleting.Wait()
	for i, err := range errs {
		if err != nil {
			return away(fmt.Errorf("forget message %d: %w", places[i].Seq, err))
		}
	}
	return nil
}

// forget names the message by its id too: in a stream that was made anew its
// place may be another's.
func forget(ctx context.Context, s jetstream.Stream, p Place) error {
	return s.Purge(ctx, jetstream.WithPurgeSubject(acceptPrefix+"*."+p.ID), jetstream.WithPurgeSequence(p.Seq+1))
}

// AcceptState is how full the stream of accepted messages is, and who has yet
// to work on it.
type AcceptState struct {
	Messages uint64
	Bytes    uint64
	MaxBytes int64 // when it has so many, Accept answers ErrAway; -1 = no limit
	LastSeq  uint64
	Replicas int               // copies of the stream
	Pending  map[string]uint64 // messages that are not acknowledged, those being worked on included, by durable
}

// Accepting tells the state of the stream of accepted messages. ErrAway when
// nobody can.
func (b *Bus) Accepting(ctx context.Context) (AcceptState, error) {
	s, err := b.accepted(ctx)
	if err != nil {
		return AcceptState{}, err
	}
	has := s.CachedInfo()
	state := AcceptState{
		Messages: has.State.Msgs, Bytes: has.State.Bytes, MaxBytes: has.Config.MaxBytes,
		LastSeq: has.State.LastSeq, Replicas: has.Config.Replicas, Pending: map[string]uint64{},
	}
	consumers := s.ListConsumers(ctx)
	for c := range consumers.Info() {
		if c.Config.Durable != "" {
			state.Pending[c.Config.Durable] = c.NumPending + uint64(c.NumAckPending) // redeliveries are among the latter
		}
	}
	if err := consumers.Err(); err != nil {
		return AcceptState{}, away(fmt.Errorf("list consumers: %w", err))
	}
	return state, nil
}

// accepted is the stream, asked for a moment ago.
func (b *Bus) accepted(ctx context.Context) (jetstream.Stream, error) {
	l, err := b.reach(ctx)
	if err != nil {
		return nil, away(err)
	}
	s, err := l.js.Stream(ctx, b.cfg.acceptStream())
	if err != nil {
		return nil, away(fmt.Errorf("stream %s: %w", b.cfg.acceptStream(), err))
	}
	return s, nil
}
