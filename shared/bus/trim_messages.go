package bus

import (
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// How long MESSAGES keeps finished messages for other readers.
const (
	messagesKept        = time.Hour
	messagesKeptHalf    = 15 * time.Minute // once the stream is half full
	messagesKeptFull    = 2 * time.Minute  // once it is nearly full: the deduplication window
	trimTimeout         = 8 * time.Second  // of one stream
	trimBudget          = 4 * time.Second  // no page begins after it
	trimDeletes         = 32               // in parallel
	trimCopies          = 1000             // older copies for whose sake a trim begins again where it began
	maxSequence         = math.MaxUint64
	messageSourcePrefix = "/sendonce/messages/"
	nearlyFull          = 0.9
	maxRemembered       = 500_000 // messages whose copies one trim compares: about 40 MB at most
)

// MessageState is what the caller knows of a message in MESSAGES.
type MessageState int8

// The states.
const (
	Unfinished MessageState = iota // or unknown: it stays
	Sent                           // stored and needs no confirmation: it stays until all consumers of the stream have it; without consumers until the stream is half full
	Finished                       // confirmed by all who must, or given up
)

// TrimResult is the result of one trim of MESSAGES.
type TrimResult struct {
	Removed int
	Next    uint64 // where the next trim continues; 0 = at the beginning
	HeldBy  string // the consumer for which finished messages are kept; "" = none
}

// TrimMessages removes finished, old enough messages from MESSAGES. It starts at from (0 = the
// beginning) and runs for a few seconds. judge returns the states of messages by id. full means that
// the stream has refused a message. Unfinished messages stay until the age limit of the stream, but
// once it is half full only the newest copy of each, even of young ones: a reader that has not read an
// older copy receives the newest, which has the same CloudEvent id, content and subject.
func (b *Bus) TrimMessages(ctx context.Context, from uint64, full bool, judge func(ctx context.Context, ids []string) (map[string]MessageState, error)) (TrimResult, error) {
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	l, stream, err := b.stream(ctx, StreamMessages)
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
	if full || used > 0.5 {
		t.newest = map[copyKey]uint64{}
	}
	if t.read, t.slowest, err = readByAll(ctx, stream); err != nil {
		return TrimResult{}, err
	}
	if t.slowest == noConsumer && (full || used > 0.5) {
		t.read = maxSequence // there is no reader to keep them for
	}
	from = max(from, info.State.FirstSeq)
	if from > info.State.LastSeq {
		from = info.State.FirstSeq
	}
	t.allBefore = from == info.State.FirstSeq
	err = t.run(ctx, l, from)
	return t.TrimResult, err
}

// noConsumer is the slowest consumer of a stream without consumers.
const noConsumer = ""

// readByAll returns the sequence number up to which every consumer has everything, and the slowest
// consumer. A consumer with nothing left to read is not behind, whatever its filter. Without consumers
// it returns 0. The server counts a new message for its consumers shortly after it has acknowledged
// it; what a trim may remove is at least messagesKeptFull older.
func readByAll(ctx context.Context, stream jetstream.Stream) (read uint64, slowest string, err error) {
	consumers := stream.ListConsumers(ctx)
	for c := range consumers.Info() {
		if strings.HasPrefix(c.Name, headersConsumer) {
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

// messageTrim is a trim in progress.
type messageTrim struct {
	TrimResult
	stream    jetstream.Stream
	states    func(ctx context.Context, ids []string) (map[string]MessageState, error)
	before    time.Time // younger messages stay
	read      uint64    // sequence number read by all consumers
	slowest   string    // the slowest of them
	allBefore bool      // everything before the page was removed
	// newest is the sequence number of the newest copy of each message that stays; nil = copies stay.
	// Copies of what is not in it stay too.
	newest map[copyKey]uint64
	copies int // older copies found
}

// copyKey is the same for all copies of one message, and different for another content, source or subject.
type copyKey [16]byte

// copyKeyOf returns the key of a message whose Nats-Msg-Id is <message>.<epoch>.<send>; false for others.
func copyKeyOf(m messageHeader) (key copyKey, ok bool) {
	parts := strings.Split(m.MsgID, ".")
	if len(parts) < 3 || parts[0] != m.ID {
		return key, false
	}
	parts = append(parts[:len(parts)-2], m.Source, m.Subject)
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return copyKey(sum[:len(key)]), true
}

// olderCopy remembers an entry that stays, and returns the sequence number of the copy before it.
func (t *messageTrim) olderCopy(p trimEntry) (seq uint64, found bool) {
	if t.newest == nil || !p.resent {
		return 0, false
	}
	seq, found = t.newest[p.key]
	if found || len(t.newest) < maxRemembered {
		t.newest[p.key] = p.seq
	}
	return seq, found
}

// trimEntry is one message of the stream.
type trimEntry struct {
	seq uint64
	id  string // "" if not published by Sendonce
	// young entries stay, unless a later copy follows.
	young  bool
	key    copyKey
	resent bool // it has a key
}

// run reads message headers page by page: of old enough messages, and of young ones where copies are
// removed.
func (t *messageTrim) run(ctx context.Context, l *Connection, from uint64) error {
	ends, until, start := true, t.before, time.Now()
	if t.newest != nil {
		until = time.Time{}
	}
	err := l.readHeaders(ctx, StreamMessages, from, until, func(messages []messageHeader) (bool, error) {
		if ends = time.Since(start) <= trimBudget; !ends {
			return false, nil
		}
		page := t.entries(messages)
		if len(page) == 0 { // all are young
			return true, nil
		}
		t.Next = page[len(page)-1].seq + 1
		return true, t.removeFinished(ctx, page)
	})
	switch {
	case err != nil:
		return err
	case ends:
		t.Next = 0
	case t.copies >= trimCopies:
		t.Next = from // more copies may follow of those that this trim read; fewer are before them now
	}
	return nil
}

// entries returns the messages that may be removed: old enough ones, and young ones where copies are
// removed.
func (t *messageTrim) entries(messages []messageHeader) []trimEntry {
	page := make([]trimEntry, 0, len(messages))
	for _, m := range messages {
		p := trimEntry{seq: m.Seq, young: m.At.After(t.before)}
		if p.young && t.newest == nil {
			break // all later ones are younger still
		}
		if strings.HasPrefix(m.Source, messageSourcePrefix) {
			p.id = m.ID
			p.key, p.resent = copyKeyOf(m)
		}
		page = append(page, p)
	}
	return page
}

// removeFinished removes the finished messages of a page, and the copies that it makes superfluous: by
// one purge as far as nothing before them is left, otherwise one by one.
func (t *messageTrim) removeFinished(ctx context.Context, page []trimEntry) error {
	ids := make([]string, 0, len(page))
	for _, p := range page {
		if p.id != "" && !p.young {
			ids = append(ids, p.id)
		}
	}
	var verdicts map[string]MessageState
	if len(ids) > 0 {
		var err error
		if verdicts, err = t.states(ctx, ids); err != nil {
			return err
		}
	}
	var upTo uint64
	var single []uint64
	prefix := 0
	for _, p := range page {
		verdict := verdicts[p.id]
		if p.young {
			verdict = Unfinished
		}
		over := verdict == Finished || verdict == Sent && p.seq <= t.read
		if verdict == Sent && !over {
			t.HeldBy = t.slowest
		}
		switch {
		case p.id == "" || !over:
			t.allBefore = false
			if older, found := t.olderCopy(p); found {
				single = append(single, older)
				t.copies++
			}
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

// deleteEach deletes messages by sequence number, several in parallel.
func (t *messageTrim) deleteEach(ctx context.Context, seqs []uint64) error {
	var next, removed atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, min(trimDeletes, len(seqs)))
	for w := range errs {
		all.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= len(seqs) {
					return
				}
				err := t.stream.DeleteMsg(ctx, seqs[i])
				if err == nil {
					removed.Add(1)
				} else if !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) { // already gone
					errs[w] = unavailable(err)
				}
			}
		})
	}
	all.Wait()
	t.Removed += int(removed.Load())
	return errors.Join(errs...)
}
