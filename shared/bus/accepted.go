package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// forgetConcurrency is how many deletions are under way at a time: each waits for the
// stream's replicas.
const forgetConcurrency = 16

// AcceptedAt gives the messages that the stream has at these places, in their order;
// those that it has no more are left out. ErrAway when nobody can say.
func (b *Bus) AcceptedAt(ctx context.Context, places []uint64) (found []AcceptedMessage, err error) {
	err = b.withAcceptStream(ctx, func(ctx context.Context, l *connection, _ jetstream.Stream) error {
		for _, place := range places {
			// A replica that lags behind would not have it yet.
			m, err := b.readFromLeader(ctx, l, []byte(`{"seq":`+strconv.FormatUint(place, 10)+`}`))
			switch {
			case errors.Is(err, errNotEvent):
				b.log.Warn("what is in the stream of accepted messages is no event", "sequence", place, "error", err)
			case err != nil:
				return fmt.Errorf("get message %d: %w", place, err)
			case m != nil:
				found = append(found, *m)
			}
		}
		return nil
	})
	return found, err
}

// AcceptedEntry is where the stream holds the message with an id.
type AcceptedEntry struct {
	ID  string
	Seq uint64
}

// Forget deletes the messages at these places; those that are gone already are
// no error. Their subjects take messages again, so it is only for those that
// are saved, and past the time in which somebody may repeat them. A consumer that
// has not had them yet never gets them.
func (b *Bus) Forget(ctx context.Context, places []AcceptedEntry) error {
	return b.withAcceptStream(ctx, func(ctx context.Context, _ *connection, s jetstream.Stream) error {
		errs := make([]error, len(places))
		slots := make(chan struct{}, forgetConcurrency)
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
				return fmt.Errorf("forget message %d: %w", places[i].Seq, err)
			}
		}
		return nil
	})
}

// forget names the message by its id too: in a stream that was made anew its
// place may be another's.
func forget(ctx context.Context, s jetstream.Stream, p AcceptedEntry) error {
	return s.Purge(ctx, jetstream.WithPurgeSubject(acceptPrefix+"*."+p.ID), jetstream.WithPurgeSequence(p.Seq+1))
}

// AcceptState is how full the stream of accepted messages is, and who has yet
// to work on it.
type AcceptState struct {
	Created  time.Time // of the stream: places are only worth something within one
	Messages uint64
	Bytes    uint64
	MaxBytes int64 // when it has so many, Accept answers ErrAway; -1 = no limit
	FirstSeq uint64
	LastSeq  uint64

	// By the durables of Config.AcceptShards.
	Pending map[string]uint64 // messages that are not acknowledged, those being worked on included, by durable
	SavedTo uint64            // the function save has answered for everything up to here; 0 while one of its durables is missing
}

// AcceptState tells the state of the stream of accepted messages. ErrAway when
// nobody can.
func (b *Bus) AcceptState(ctx context.Context) (state AcceptState, err error) {
	err = b.withAcceptStream(ctx, func(ctx context.Context, _ *connection, s jetstream.Stream) error {
		has := s.CachedInfo()
		state = AcceptState{
			Created: has.Created, Messages: has.State.Msgs, Bytes: has.State.Bytes, MaxBytes: has.Config.MaxBytes,
			FirstSeq: has.State.FirstSeq, LastSeq: has.State.LastSeq, Pending: map[string]uint64{}, SavedTo: has.State.LastSeq,
		}
		saving, ours := 0, shardsSuffix(b.cfg.acceptShards())
		consumers := s.ListConsumers(ctx)
		for c := range consumers.Info() {
			if !strings.HasSuffix(c.Config.Durable, ours) {
				continue
			}
			left := c.NumPending + uint64(c.NumAckPending) // redeliveries are among the latter
			state.Pending[c.Config.Durable] = left
			if strings.HasPrefix(c.Config.Durable, saveDurablePrefix) {
				saving++
				if left > 0 {
					state.SavedTo = min(state.SavedTo, c.AckFloor.Stream)
				}
			}
		}
		if saving < b.cfg.acceptShards() {
			state.SavedTo = 0
		}
		if err := consumers.Err(); err != nil {
			return fmt.Errorf("list consumers: %w", err)
		}
		return nil
	})
	return state, err
}

// withAcceptStream does something with the stream, asked for a moment ago, as long as
// the connection lasts. Its error is ErrAway.
func (b *Bus) withAcceptStream(ctx context.Context, do func(ctx context.Context, l *connection, s jetstream.Stream) error) error {
	l, err := b.connection(ctx)
	if err != nil {
		return unavailable(err)
	}
	ctx, unbind := l.untilLost(ctx)
	defer unbind()
	s, err := l.js.Stream(ctx, b.cfg.acceptStream())
	if err != nil {
		return unavailable(fmt.Errorf("stream %s: %w", b.cfg.acceptStream(), err))
	}
	if err := do(ctx, l, s); err != nil {
		return unavailable(err)
	}
	return nil
}
