package bus

import (
	"context"
	"crypto/sha256"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// How long MESSAGES keeps messages that need not be sent again, for readers other than the expected consumers.
const (
	messagesKept     = time.Hour
	messagesKeptHalf = 15 * time.Minute // while the stream is more than half full
	messagesKeptFull = 2 * time.Minute  // while it has no room (hasNoRoom): the deduplication window
)

const (
	trimCopies    = 1000    // if a trim found at least so many older copies and stopped early, the next trim begins where this trim began
	maxRemembered = 500_000 // limit of messageTrim.newest, which then needs about 40 MB

	maxSequence         = math.MaxUint64
	messageSourcePrefix = "/sendonce/messages/" // of the CloudEvents that Sendonce publishes to MESSAGES
)

// MessageState is the state of a message in MESSAGES, as the database has it.
type MessageState int8

// The states.
const (
	Unfinished MessageState = iota // may be sent again, or the state is unknown: the message stays
	Sent                           // was sent and needs no confirmation: the message stays until all consumers have acknowledged it; without consumers, while the stream is at most half full
	Finished                       // confirmed by all expected consumers, or given up
)

// TrimResult is the result of one trim of MESSAGES.
type TrimResult struct {
	Removed int
	Next    uint64 // where the next trim continues; 0 = at the beginning
	HeldBy  string // the consumer for which Sent messages stay although the stream has no room; "" = none
}

// TrimMessages removes from MESSAGES the old messages that are Finished, and those that are Sent and need not stay for a
// consumer. It starts at the sequence number from (0 = the beginning) and runs for at most 8 s. states returns the
// states of messages by id. refused means that the stream has refused messages. Of an Unfinished message, at least the newest
// copy stays until the age limit of the stream.
//
// Each send of a message stores another copy. While the stream is more than half full, only the newest copy stays,
// even if the copies are young. A reader that has not read an older copy receives the newest copy, which has the
// same CloudEvent id, content and subject.
func (b *Bus) TrimMessages(ctx context.Context, from uint64, refused bool, states func(ctx context.Context, ids []string) (map[string]MessageState, error)) (TrimResult, error) {
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	conn, stream, err := b.stream(ctx, StreamMessages)
	if err != nil || stream == nil {
		return TrimResult{}, err
	}
	info := stream.CachedInfo()
	if info.State.Msgs == 0 {
		return TrimResult{}, nil
	}
	t := &messageTrim{stream: stream, states: states, before: b.cfg.ago(messagesKept)}
	halfFull := fillRatio(info) > 0.5
	switch {
	case hasNoRoom(info, refused):
		t.before = b.cfg.ago(messagesKeptFull)
	case halfFull:
		t.before = b.cfg.ago(messagesKeptHalf)
	}
	if halfFull {
		t.newest = map[copyKey]uint64{}
	}
	if t.ackedTo, t.slowest, err = ackedByAll(ctx, stream); err != nil {
		return TrimResult{}, err
	}
	if t.slowest == noConsumer && halfFull {
		t.ackedTo = maxSequence
	}
	from = max(from, info.State.FirstSeq)
	if from > info.State.LastSeq {
		from = info.State.FirstSeq
	}
	t.allBefore = from == info.State.FirstSeq
	err = t.run(ctx, conn, from)
	if !hasNoRoom(info, refused) {
		t.HeldBy = ""
	}
	return t.TrimResult, err
}

// noConsumer stands for the slowest consumer of a stream that has no consumers.
const noConsumer = ""

// ackedByAll returns the sequence number up to which every consumer has acknowledged everything that its filter
// selects, and the slowest consumer; 0 and noConsumer if there are no consumers. If a consumer has no pending
// messages, the number is maxSequence, since its acknowledgements end at the last message that its filter selects.
// The server counts a new message as pending shortly after it has stored the message. This delay does not matter,
// since removable messages are older than messagesKeptFull.
func ackedByAll(ctx context.Context, stream jetstream.Stream) (ackedTo uint64, slowest string, err error) {
	consumers := stream.ListConsumers(ctx)
	for c := range consumers.Info() {
		if strings.HasPrefix(c.Name, headersConsumer) {
			continue
		}
		floor := c.AckFloor.Stream
		if c.NumPending == 0 && c.NumAckPending == 0 {
			floor = maxSequence
		}
		if slowest == noConsumer || floor < ackedTo {
			ackedTo, slowest = floor, c.Name
		}
	}
	if err := consumers.Err(); err != nil {
		return 0, noConsumer, unavailable(err)
	}
	return ackedTo, slowest, nil
}

// messageTrim is a trim in progress.
type messageTrim struct {
	TrimResult
	stream    jetstream.Stream
	states    func(ctx context.Context, ids []string) (map[string]MessageState, error)
	before    time.Time // younger messages stay
	ackedTo   uint64    // see ackedByAll
	slowest   string    // the slowest consumer
	allBefore bool      // all messages before the current message are to be removed: one purge can remove them

	newest map[copyKey]uint64 // of messages that stay: the sequence number of the newest copy so far; nil = all copies stay
	copies int                // older copies found
}

// copyKey is equal for all copies of one message, and different if the id, fingerprint, source or subject differs.
type copyKey [16]byte

// copyKeyOf returns the key of a message. ok is false if the Nats-Msg-Id is not <message>[.<fingerprint>].<epoch>.<send>.
func copyKeyOf(m messageHeader) (key copyKey, ok bool) {
	parts := strings.Split(m.MsgID, ".")
	if len(parts) < 3 || parts[0] != m.ID {
		return key, false
	}
	parts = append(parts[:len(parts)-2], m.Source, m.Subject)
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return copyKey(sum[:len(key)]), true
}

// recordCopy records the newest copy so far of a message that stays, and returns the sequence number of the copy before it.
func (t *messageTrim) recordCopy(e trimEntry) (seq uint64, found bool) {
	if t.newest == nil || !e.hasKey {
		return 0, false
	}
	seq, found = t.newest[e.key]
	if found || len(t.newest) < maxRemembered {
		t.newest[e.key] = e.seq
	}
	return seq, found
}

// trimEntry is one message of the stream.
type trimEntry struct {
	seq    uint64
	id     string // "" if not published by Sendonce
	young  bool   // the message stays, whatever its state, unless a newer copy follows
	key    copyKey
	hasKey bool // false: not compared with other messages
}

// run reads message headers page by page, until the messages are young or, where copies are removed, until
// the end of the stream.
func (t *messageTrim) run(ctx context.Context, conn *Connection, from uint64) error {
	complete, until, start := true, t.before, time.Now()
	if t.newest != nil {
		until = time.Time{}
	}
	err := conn.readHeaders(ctx, StreamMessages, from, until, func(messages []messageHeader) (bool, error) {
		if complete = time.Since(start) <= trimBudget; !complete { // the next trim continues here
			return false, nil
		}
		page := t.entries(messages)
		if len(page) == 0 { // all messages of the page are young
			return true, nil
		}
		t.Next = page[len(page)-1].seq + 1
		var err error
		if complete, err = t.removeFrom(ctx, page); !complete {
			t.Next = page[0].seq
		}
		return complete, err
	})
	switch {
	case err != nil:
		return err
	case complete:
		t.Next = 0
	case t.copies >= trimCopies:
		t.Next = from // the unread rest may have newer copies of what this trim kept: compare again, now with fewer messages
	}
	return nil
}

// entries returns the messages of a page that may be removed: the old ones and, while copies are removed, also the young
// ones.
func (t *messageTrim) entries(messages []messageHeader) []trimEntry {
	page := make([]trimEntry, 0, len(messages))
	for _, m := range messages {
		e := trimEntry{seq: m.Seq, young: m.At.After(t.before)}
		if e.young && t.newest == nil {
			break // all later messages are younger
		}
		if strings.HasPrefix(m.Source, messageSourcePrefix) {
			e.id = m.ID
			e.key, e.hasKey = copyKeyOf(m)
		}
		page = append(page, e)
	}
	return page
}

// removeFrom removes those messages of a page whose state allows it, and older copies of the others. complete
// is that of removeMessages.
func (t *messageTrim) removeFrom(ctx context.Context, page []trimEntry) (complete bool, err error) {
	ids := make([]string, 0, len(page))
	for _, e := range page {
		if e.id != "" && !e.young {
			ids = append(ids, e.id)
		}
	}
	var states map[string]MessageState
	if len(ids) > 0 {
		if states, err = t.states(ctx, ids); err != nil {
			return false, err
		}
	}
	var purgeTo uint64  // the last sequence number that the purge removes
	purged := 0         // number of messages that the purge removes
	var others []uint64 // to be removed one by one
	for _, e := range page {
		state := states[e.id]
		if e.young {
			state = Unfinished
		}
		removable := state == Finished || state == Sent && e.seq <= t.ackedTo
		if state == Sent && !removable {
			t.HeldBy = t.slowest
		}
		switch {
		case e.id == "" || !removable:
			t.allBefore = false
			if older, found := t.recordCopy(e); found {
				others = append(others, older)
				t.copies++
			}
		case t.allBefore:
			purgeTo = e.seq
			purged++
		default:
			others = append(others, e.seq)
		}
	}
	removed, complete, err := removeMessages(ctx, t.stream, purgeTo, purged, others)
	t.Removed += removed
	return complete, err
}
