package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// forgetConcurrency bounds parallel deletions. Each deletion waits for the stream's replicas.
const forgetConcurrency = 16

// AcceptedAt returns the messages with these sequence numbers, in the order of seqs. It leaves out messages
// that no longer exist or are not events. It returns ErrUnavailable if a message cannot be read.
func (b *Bus) AcceptedAt(ctx context.Context, seqs []uint64) (messages []AcceptedMessage, err error) {
	err = b.withAcceptStream(ctx, func(ctx context.Context, conn *Connection, _ jetstream.Stream) error {
		for _, seq := range seqs {
			m, err := b.readFromLeader(ctx, conn, map[string]any{"seq": seq})
			switch {
			case errors.Is(err, ErrNotEvent):
				if unlogged, logNow := b.notEvents.Next(); logNow {
					b.log.Warn("a message in the stream of accepted messages is not an event", "sequence", seq, "error", err, "unlogged", unlogged)
				}
			case err != nil:
				return fmt.Errorf("get message %d: %w", seq, err)
			case m != nil:
				messages = append(messages, *m)
			}
		}
		return nil
	})
	return messages, err
}

// AcceptedEntry is an accepted message's id and sequence number.
type AcceptedEntry struct {
	ID  string
	Seq uint64
}

// Forget deletes messages; a missing message is no error. Afterwards Accept stores a repeat of such a message
// again. So call Forget only for messages that the function save has saved or rejected. No consumer receives a
// message after Forget has deleted it.
func (b *Bus) Forget(ctx context.Context, entries []AcceptedEntry) error {
	return b.withAcceptStream(ctx, func(ctx context.Context, _ *Connection, s jetstream.Stream) error {
		errs := make([]error, len(entries))
		running := make(chan struct{}, forgetConcurrency)
		var deleting sync.WaitGroup
		for i, entry := range entries {
			running <- struct{}{}
			deleting.Go(func() {
				// By the id too: in a stream that was created again, another message may have the sequence number.
				errs[i] = removeAccepted(ctx, s, AcceptPrefix+"*."+entry.ID, entry.Seq)
				<-running
			})
		}
		deleting.Wait()
		for i, err := range errs {
			if err != nil {
				return fmt.Errorf("forget message %d: %w", entries[i].Seq, err)
			}
		}
		return nil
	})
}

// removeAccepted removes the messages of a subject up to a sequence number.
func removeAccepted(ctx context.Context, s jetstream.Stream, subject string, seq uint64) error {
	return s.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(seq+1))
}

// StoredMessage is one message of the stream of accepted messages.
type StoredMessage struct {
	Subject string
	Seq     uint64
	Message *AcceptedMessage // nil if it is not an event
}

// OldestAccepted returns the messages that are older than age and have a sequence number of at most last. If
// there are more than limit such messages, it returns the oldest. It returns ErrUnavailable if a message cannot
// be read.
func (b *Bus) OldestAccepted(ctx context.Context, last uint64, age time.Duration, limit int) (oldest []StoredMessage, err error) {
	err = b.withAcceptStream(ctx, func(ctx context.Context, _ *Connection, s jetstream.Stream) error {
		before := b.cfg.ago(age)
		for next := uint64(1); len(oldest) < limit; {
			m, err := s.GetMsg(ctx, next, jetstream.WithGetMsgSubject(AcceptPrefix+">"))
			switch {
			case errors.Is(err, jetstream.ErrMsgNotFound):
				return nil
			case err != nil:
				return fmt.Errorf("get message %d: %w", next, err)
			case m.Sequence > last || m.Time.After(before):
				return nil
			}
			message, _ := newAcceptedMessage(m.Sequence, m.Time, m.Header, m.Data) // nil if it is not an event
			oldest, next = append(oldest, StoredMessage{m.Subject, m.Sequence, message}), m.Sequence+1
		}
		return nil
	})
	return oldest, err
}

// RemoveStored removes messages that OldestAccepted returned; a missing message is no error.
func (b *Bus) RemoveStored(ctx context.Context, messages []StoredMessage) error {
	return b.withAcceptStream(ctx, func(ctx context.Context, _ *Connection, s jetstream.Stream) error {
		for _, m := range messages {
			if err := removeAccepted(ctx, s, m.Subject, m.Seq); err != nil {
				return fmt.Errorf("remove message %d: %w", m.Seq, err)
			}
		}
		return nil
	})
}

// AcceptState is the fill level of the stream of accepted messages and the progress of its consumers.
type AcceptState struct {
	Created  time.Time // of the stream; if it is created again, its sequence numbers begin again
	Messages uint64
	Bytes    uint64
	MaxBytes int64 // limit at which Accept returns ErrUnavailable; -1 = none
	FirstSeq uint64
	LastSeq  uint64

	// Pending, Unsaved and SavedTo are only of the consumers whose number of shards is Config.AcceptShards.
	Pending map[string]uint64 // by durable: messages that are not acknowledged, whether delivered or not
	// While a durable of save is missing or ahead of the stream (see isAhead), Unsaved is Messages and SavedTo is 0.
	Unsaved uint64 // messages that are not acknowledged in the consumers of save
	SavedTo uint64 // all messages up to this sequence number are acknowledged in the consumers of save
}

// AcceptState returns the state of the stream of accepted messages, or ErrUnavailable.
func (b *Bus) AcceptState(ctx context.Context) (state AcceptState, err error) {
	err = b.withAcceptStream(ctx, func(ctx context.Context, _ *Connection, s jetstream.Stream) error {
		info := s.CachedInfo()
		state = AcceptState{
			Created: info.Created, Messages: info.State.Msgs, Bytes: info.State.Bytes, MaxBytes: info.Config.MaxBytes,
			FirstSeq: info.State.FirstSeq, LastSeq: info.State.LastSeq, Pending: map[string]uint64{}, SavedTo: info.State.LastSeq,
		}
		savers, suffix, delivered := 0, shardsSuffix(b.cfg.acceptShards()), uint64(0)
		consumers := s.ListConsumers(ctx)
		for c := range consumers.Info() {
			if !strings.HasSuffix(c.Config.Durable, suffix) {
				continue
			}
			pending := c.NumPending + uint64(c.NumAckPending) // NumAckPending includes messages that wait for redelivery
			state.Pending[c.Config.Durable] = pending
			if strings.HasPrefix(c.Config.Durable, saveDurablePrefix) {
				savers++
				delivered = max(delivered, c.Delivered.Stream)
				state.Unsaved += pending
				if pending > 0 {
					state.SavedTo = min(state.SavedTo, c.AckFloor.Stream)
				}
			}
		}
		if err := consumers.Err(); err != nil {
			return fmt.Errorf("list consumers: %w", err)
		}
		unknown := savers < b.cfg.acceptShards()
		if delivered > state.LastSeq { // read the stream again: the consumers were read later
			later, err := s.Info(ctx)
			if err != nil {
				return err
			}
			unknown = unknown || delivered > later.State.LastSeq // see isAhead
		}
		if unknown {
			state.SavedTo, state.Unsaved = 0, state.Messages
		}
		return nil
	})
	return state, err
}

// withAcceptStream looks up the stream of accepted messages and calls do. The context of do ends when the
// connection is lost. Each error is an ErrUnavailable.
func (b *Bus) withAcceptStream(ctx context.Context, do func(ctx context.Context, conn *Connection, s jetstream.Stream) error) error {
	conn, err := b.connection(ctx)
	if err != nil {
		return unavailable(err)
	}
	ctx, unbind := conn.UntilLost(ctx)
	defer unbind()
	s, err := conn.js.Stream(ctx, b.cfg.acceptStream())
	if err != nil {
		return unavailable(fmt.Errorf("stream %s: %w", b.cfg.acceptStream(), err))
	}
	if err := do(ctx, conn, s); err != nil {
		return unavailable(err)
	}
	return nil
}
