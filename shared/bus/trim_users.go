package bus

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/task"
)

// How long a trim keeps a message of USERS at least. Of the older messages, a trim removes only those of senders above
// their fair share.
const (
	usersKept      = day              // in a stream that is more than half full
	usersKeptFull  = 15 * time.Minute // in a stream that has no room (hasNoRoom)
	usersKeptLeast = 30 * time.Second // in a stream that has no room, if usersKeptFull does not make enough room; longer than maxPoll and untrimmedFor of a follower
)

const (
	trimNotice      = 3 * time.Second // between note (see TrimUsers) and the removal; longer than removedValid of a follower
	maxUserMessages = 1_000_000       // a trim reads at most about so many messages, the oldest
	// readUsersFor is how long a trim reads. It leaves trimNotice, a second to remove messages, and trimMargin.
	readUsersFor = trimTimeout - trimMargin - trimNotice - time.Second
)

// userMessage is one message of USERS.
type userMessage struct {
	seq    uint64
	at     time.Time
	pair   int // index of its sender and user in userMessages
	size   int64
	remove bool
}

// userMessages has the messages of USERS that a trim has read. A pair is a sender and a user to whom it has sent.
type userMessages struct {
	messages []userMessage
	sender   []string          // of each pair
	user     []string          // of each pair
	size     []int64           // of each pair: bytes of its messages that are not marked for removal
	index    map[[2]string]int // of a pair, by sender and subject
}

func (in *userMessages) add(seq uint64, at time.Time, sender, subject string, size int64) {
	key := [2]string{sender, subject}
	n, known := in.index[key]
	if !known {
		n = len(in.size)
		in.index[key] = n
		user, _ := unescapeToken(strings.TrimPrefix(subject, UserPrefix))
		if !task.ValidUser(user) { // only an attacker who controls a function writes such a message
			user = ""
		}
		in.sender, in.user, in.size = append(in.sender, sender), append(in.user, user), append(in.size, 0)
	}
	in.size[n] += size
	in.messages = append(in.messages, userMessage{seq: seq, at: at, pair: n, size: size})
}

// fairShare returns the largest limit with this property: if each size above the limit is reduced to the limit,
// the sum of all sizes is at most total. It returns MaxInt64 if the sum is at most total without a limit.
func fairShare(sizes []int64, total int64) int64 {
	sizes = slices.Sorted(slices.Values(sizes))
	for i, size := range sizes {
		equal := total / int64(len(sizes)-i)
		if size > equal {
			return equal
		}
		total -= size
	}
	return math.MaxInt64
}

// markForRemoval marks messages for removal, the oldest first, until target bytes are left. It marks a message
// only if the message is older than before, its sender is above the fair share of all senders, and its pair is
// above the fair share of all pairs of the sender.
func (in *userMessages) markForRemoval(target int64, before time.Time) {
	pairSizes := map[string][]int64{} // by sender
	total := map[string]int64{}       // by sender
	for n, sender := range in.sender {
		pairSizes[sender] = append(pairSizes[sender], in.size[n])
		total[sender] += in.size[n]
	}
	senderLimit := fairShare(slices.Collect(maps.Values(total)), target)
	pairLimit := map[string]int64{} // by sender
	for sender, size := range total {
		pairLimit[sender] = math.MaxInt64
		if size > senderLimit {
			pairLimit[sender] = fairShare(pairSizes[sender], senderLimit)
		}
	}
	for i := range in.messages {
		e := &in.messages[i]
		sender := in.sender[e.pair]
		if !e.remove && total[sender] > senderLimit && in.size[e.pair] > pairLimit[sender] && e.at.Before(before) {
			e.remove = true
			in.size[e.pair] -= e.size
			total[sender] -= e.size
		}
	}
}

func (in *userMessages) bytesLeft() (total int64) {
	for _, size := range in.size {
		total += size
	}
	return total
}

// TrimmedUsers describes the messages that a trim of USERS is about to remove.
type TrimmedUsers struct {
	UpTo   map[string]uint64 // by user: the last sequence number to remove
	Last   uint64            // the last sequence number of the stream
	MaxAge time.Duration     // the age limit of the stream
}

// TrimUsers removes messages from USERS if more than half of the stream is used, and returns the number of
// removed messages. It removes messages of the senders with most bytes, from the inboxes that they fill most, so that
// a sender that floods one inbox or many inboxes does not shorten how long messages of other senders stay. Removed
// messages are still in the database. refused means that the stream has refused messages. TrimUsers calls note 3 s
// before the removal, so that followers can report the gap.
func (b *Bus) TrimUsers(ctx context.Context, refused bool, note func(context.Context, TrimmedUsers) error) (removed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	conn, stream, err := b.stream(ctx, StreamUsers)
	if err != nil || stream == nil {
		return 0, err
	}
	info := stream.CachedInfo()
	used, kept := fillRatio(info), []time.Duration{usersKept}
	if hasNoRoom(info, refused) {
		used, kept = max(used, nearlyFull), []time.Duration{usersKeptFull, usersKeptLeast}
	}
	if used <= 0.5 || info.State.Msgs == 0 {
		return 0, nil
	}
	in, err := readUserMessages(ctx, conn, info.State.FirstSeq)
	if err != nil {
		return 0, err
	}
	capacity := float64(in.bytesLeft()) / used // estimated bytes of a full stream
	for i, age := range kept {
		if i == 0 || float64(in.bytesLeft()) > capacity*0.75 {
			in.markForRemoval(int64(capacity*0.5), b.cfg.ago(age))
		}
	}
	trimmed := TrimmedUsers{UpTo: map[string]uint64{}, Last: info.State.LastSeq, MaxAge: info.Config.MaxAge}
	for _, e := range in.messages {
		if e.remove {
			trimmed.UpTo[in.user[e.pair]] = e.seq
		}
	}
	if len(trimmed.UpTo) == 0 {
		return 0, nil
	}
	if err := note(ctx, trimmed); err != nil {
		return 0, err
	}
	select {
	case <-time.After(cmp.Or(b.cfg.TrimNotice, trimNotice)):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return in.removeMarked(ctx, stream)
}

// removeMarked removes the marked messages: those before the first message that stays by one purge, the others one by one.
func (in *userMessages) removeMarked(ctx context.Context, stream jetstream.Stream) (removed int, err error) {
	var purgeTo uint64
	purged := 0
	for purged < len(in.messages) && in.messages[purged].remove {
		purgeTo = in.messages[purged].seq
		purged++
	}
	var others []uint64
	for _, e := range in.messages[purged:] {
		if e.remove {
			others = append(others, e.seq)
		}
	}
	removed, _, err = removeMessages(ctx, stream, purgeTo, purged, others) // the next trim removes what is left
	return removed, err
}

// readUserMessages reads the headers of the oldest messages of USERS, for at most about readUsersFor.
func readUserMessages(ctx context.Context, conn *Connection, first uint64) (*userMessages, error) {
	in, start := &userMessages{index: map[[2]string]int{}}, time.Now()
	err := conn.readHeaders(ctx, StreamUsers, first, time.Time{}, func(messages []messageHeader) (bool, error) {
		for _, m := range messages {
			in.add(m.Seq, m.At, m.Source, m.Subject, m.Size+headerBytes)
		}
		return len(in.messages) < maxUserMessages && time.Since(start) < readUsersFor, nil
	})
	return in, err
}
