package bus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// How long MESSAGES keeps a message that is over, for whoever else reads it.
const (
	messagesKept        = time.Hour
	messagesKeptHalf    = 15 * time.Minute // once the stream is half full
	messagesKeptFull    = 2 * time.Minute  // once it is nearly full: the window in which a repeat is recognised
	trimTimeout         = 8 * time.Second  // of one stream
	trimBudget          = 4 * time.Second  // after which no other page is begun
	trimPageSize        = 1000             // messages that are looked at together
	trimDeletes         = 32               // at once
	trimConsumer        = "sendonce-trim-" // begins the name of the consumer that reads the headers
	trimConsumerIdle    = 10 * time.Second
	trimFetchWait       = 2 * time.Second
	maxSequence         = math.MaxUint64
	messageSourcePrefix = "/sendonce/messages/"
	nearlyFull          = 0.9
)

// MessageState is what is known of a message in the stream of messages.
type MessageState int8

// The verdicts.
const (
	Unfinished MessageState = iota // not over, or not known: it stays
	Sent                           // over because a stream had it: it stays until all consumers of the stream have it; where there is none, until the stream is half full
	Finished                       // confirmed by all who had to, or given up
)

// TrimResult is what one trim of MESSAGES did.
type TrimResult struct {
	Removed int
	Next    uint64 // where the next one goes on; 0 = at the beginning
	HeldBy  string // the consumer that keeps messages in the stream which are over; "" = none
}

// TrimMessages removes from MESSAGES what is over and old enough, looking from a
// place on (0 = the beginning) for a few seconds. judge gives the verdicts on
// messages by their ids. full says that the stream has refused a message. What is
// not over stays, however old, until the age limit of the stream.
func (b *Bus) TrimMessages(ctx context.Context, from uint64, full bool, judge func(ctx context.Context, ids []string) (map[string]MessageState, error)) (TrimResult, error) {
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	_, stream, err := b.stream(ctx, StreamMessages)
	if err != nil || stream == nil {
		return TrimResult{}, err
	}
	info := stream.CachedInfo()
	if info.State.Msgs == 0 {
		return TrimResult{}, nil
	}
	t := &messageTrim{stream: stream, states: judge, before: b.cfg.ago(messagesKept)}
	used := fillRatio(info)
	switch {
	case full || used > nearlyFull:
		t.before = b.cfg.ago(messagesKeptFull)
	case used > 0.5:
		t.before = b.cfg.ago(messagesKeptHalf)
	}
	if t.read, t.slowest, err = readByAll(ctx, stream); err != nil {
		return TrimResult{}, err
	}
	if t.slowest == noConsumer && (full || used > 0.5) {
		t.read = maxSequence // they were kept as long as there was room
	}
	from = max(from, info.State.FirstSeq)
	if from > info.State.LastSeq {
		from = info.State.FirstSeq
	}
	t.allBefore = from == info.State.FirstSeq
	err = t.run(ctx, from)
	return t.TrimResult, err
}

// noConsumer is the slowest consumer of a stream that has none.
const noConsumer = ""

// readByAll is the place up to which every consumer of a stream has everything,
// and the consumer that is furthest behind. One that has nothing left to read is
// not behind, whatever its filter. Of a stream without consumers nothing was read.
func readByAll(ctx context.Context, stream jetstream.Stream) (read uint64, slowest string, err error) {
	consumers := stream.ListConsumers(ctx)
	for c := range consumers.Info() {
		if strings.HasPrefix(c.Name, trimConsumer) {
			continue
		}
		floor := c.AckFloor.Stream
		if c.NumPending == 0 && c.NumAckPending == 0 {
			floor = maxSequence
		}
		if slowest == noConsumer || floor < read {
			read, slowest = floor, c.Name
		}
	}
	if err := consumers.Err(); err != nil {
		return 0, noConsumer, unavailable(err)
	}
	return read, slowest, nil
}

// messageTrim is one trim under way.
type messageTrim struct {
	TrimResult
	stream    jetstream.Stream
	states    func(ctx context.Context, ids []string) (map[string]MessageState, error)
	before    time.Time // what is younger stays
	read      uint64    // by all consumers
	slowest   string    // of these
	allBefore bool      // everything before the page is gone
}

// trimEntry is one message of the stream.
type trimEntry struct {
	seq uint64
	id  string // "" when it is none of ours
}

// run reads the headers of messages page by page; bodies stay where they are.
func (t *messageTrim) run(ctx context.Context, from uint64) error {
	c, err := t.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Name:          trimConsumer + fmt.Sprintf("%x", time.Now().UnixNano()),
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		AckPolicy: jetstream.AckNonePolicy, HeadersOnly: true, MemoryStorage: true, Replicas: 1, InactiveThreshold: trimConsumerIdle,
	})
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = t.stream.DeleteConsumer(context.WithoutCancel(ctx), c.CachedInfo().Name) }() // else it ends when it is idle
	pending, read := c.CachedInfo().NumPending, uint64(0)
	for until := time.Now().Add(trimBudget); pending > 0; {
		if time.Now().After(until) {
			return nil // Next says where to go on
		}
		page, left, young, err := t.page(c, min(pending, trimPageSize), &read)
		if err != nil {
			return err
		}
		if len(page) > 0 {
			if err := t.removeFinished(ctx, page); err != nil {
				return err
			}
			t.Next = page[len(page)-1].seq + 1
		}
		if young || len(page) == 0 {
			break
		}
		pending = left
	}
	t.Next = 0
	return nil
}

// page reads up to n messages that are old enough. young says that one was not:
// those behind it are younger still.
func (t *messageTrim) page(c jetstream.Consumer, n uint64, read *uint64) (page []trimEntry, left uint64, young bool, err error) {
	batch, err := c.Fetch(int(n), jetstream.FetchMaxWait(trimFetchWait))
	if err != nil {
		return nil, 0, false, unavailable(err)
	}
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return nil, 0, false, unavailable(err)
		}
		if *read++; meta.Sequence.Consumer != *read {
			// What was not seen must not be removed with what is around it.
			return nil, 0, false, unavailable(fmt.Errorf("a message of %s was lost on its way", StreamMessages))
		}
		left = meta.NumPending
		if young = young || meta.Timestamp.After(t.before); young {
			continue
		}
		p := trimEntry{seq: meta.Sequence.Stream}
		if strings.HasPrefix(m.Headers().Get(attributePrefix+"source"), messageSourcePrefix) {
			p.id = m.Headers().Get(attributePrefix + "id")
		}
		page = append(page, p)
	}
	if err := batch.Error(); err != nil {
		return nil, 0, false, unavailable(err)
	}
	return page, left, young, nil
}

// removeFinished removes what is over of a page: all at once where nothing before it is
// left, the rest one by one.
func (t *messageTrim) removeFinished(ctx context.Context, page []trimEntry) error {
	ids := make([]string, 0, len(page))
	for _, p := range page {
		if p.id != "" {
			ids = append(ids, p.id)
		}
	}
	verdicts, err := t.states(ctx, ids)
	if err != nil {
		return err
	}
	var upTo uint64
	var single []uint64
	prefix := 0
	for _, p := range page {
		verdict := verdicts[p.id]
		over := verdict == Finished || verdict == Sent && p.seq <= t.read
		if verdict == Sent && !over {
			t.HeldBy = t.slowest
		}
		switch {
		case p.id == "" || !over:
			t.allBefore = false
		case t.allBefore:
			upTo = p.seq
			prefix++
		default:
			single = append(single, p.seq)
		}
	}
	if upTo > 0 {
		if err := t.stream.Purge(ctx, jetstream.WithPurgeSequence(upTo+1)); err != nil {
			return unavailable(err)
		}
		t.Removed += prefix
	}
	return t.deleteEach(ctx, single)
}

// deleteEach deletes single messages, several at once.
func (t *messageTrim) deleteEach(ctx context.Context, places []uint64) error {
	var next, removed atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, min(trimDeletes, len(places)))
	for w := range errs {
		all.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= len(places) {
					return
				}
				err := t.stream.DeleteMsg(ctx, places[i])
				if err == nil {
					removed.Add(1)
				} else if !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) { // it is gone already
					errs[w] = unavailable(err)
				}
			}
		})
	}
	all.Wait()
	t.Removed += int(removed.Load())
	return errors.Join(errs...)
}
