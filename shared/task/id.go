package task

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"sync/atomic"
	"time"
)

// ID is a UUID in its binary form. The ids of tasks are version 7 (RFC 9562): they sort by their creation time, as bytes,
// as text and in the database.
type ID [16]byte

const (
	ticksPerMilli = 1 << 12 // the field rand_a has the fraction of the millisecond
	maxTick       = 1<<60 - 1
)

// lastTick is the tick of the newest id of this process.
var lastTick atomic.Uint64

// NewID returns a new version 7 id by RFC 9562 section 6.2, method 3: 48 bits of Unix milliseconds, 12 bits of the
// millisecond's fraction, 62 random bits. Within one process each id is greater than all previous ids, even
// in the same tick of the clock or after the clock was set back.
func NewID() ID {
	id := idAt(nextTick(tickOf(time.Now())))
	// crypto/rand reads from the operating system, and ends the process if it fails. A generator in memory would return
	// the same ids in instances that were cloned from one memory snapshot.
	rand.Read(id[8:])
	id[8] = id[8]&0x3f | 0x80
	return id
}

// IDFloor returns the lowest id that NewID can return at t or later; t is rounded down by up to 245 ns. A time before
// 1970 counts as the first tick of 1970, and a time too late for an id (after the year 10889) as the last tick.
func IDFloor(t time.Time) ID { return idAt(tickOf(t)) }

// ParseID reads the canonical text of a UUID of any version: hexadecimal digits in groups of 8-4-4-4-12, in either case.
func ParseID(s string) (ID, error) { return parseID([]byte(s)) }

// String returns the canonical text, in lower case.
func (id ID) String() string {
	text := id.text()
	return string(text[:])
}

// MarshalText returns the same text as String and never fails.
func (id ID) MarshalText() ([]byte, error) {
	text := id.text()
	return text[:], nil
}

// UnmarshalText accepts what ParseID accepts. If there is an error, id is unchanged.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, err := parseID(text)
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

// Time returns the creation time of a version 7 id, in UTC, at most 245 ns too early. The time is too late if NewID was
// ahead of the clock. For other versions the result is meaningless. IDFloor(id.Time()) is at most id.
func (id ID) Time() time.Time {
	milli := binary.BigEndian.Uint64(id[:]) >> 16
	fraction := uint64(binary.BigEndian.Uint16(id[6:]) & (ticksPerMilli - 1))
	// Round up: else tickOf would return the tick before.
	nano := (fraction*uint64(time.Millisecond) + ticksPerMilli - 1) / ticksPerMilli
	return time.UnixMilli(int64(milli)).Add(time.Duration(nano)).UTC()
}

// IsZero reports whether id is the zero value, which NewID never returns.
func (id ID) IsZero() bool { return id == ID{} }

// Compare returns -1, 0 or +1 if id sorts before, with or after other, as in Postgres.
func (id ID) Compare(other ID) int { return bytes.Compare(id[:], other[:]) }

// tickOf returns the time from 1970 to t in ticks of 1/4096 ms.
func tickOf(t time.Time) uint64 {
	milli := t.UnixMilli()
	if milli < 0 {
		return 0
	}
	if milli > maxTick/ticksPerMilli {
		return maxTick
	}
	fraction := uint64(t.Nanosecond()) % uint64(time.Millisecond) * ticksPerMilli / uint64(time.Millisecond)
	return uint64(milli)*ticksPerMilli + fraction
}

// nextTick returns now, or the tick after lastTick if that is later.
func nextTick(now uint64) uint64 {
	for {
		last := lastTick.Load()
		next := max(now, last+1)
		if lastTick.CompareAndSwap(last, next) {
			return next
		}
	}
}

// idAt returns the lowest version 7 id of a tick.
func idAt(tick uint64) ID {
	var id ID
	binary.BigEndian.PutUint64(id[:], tick/ticksPerMilli<<16|0x7000|tick%ticksPerMilli)
	id[8] = 0x80
	return id
}

func (id ID) text() [36]byte {
	var t [36]byte
	hex.Encode(t[0:], id[0:4])
	hex.Encode(t[9:], id[4:6])
	hex.Encode(t[14:], id[6:8])
	hex.Encode(t[19:], id[8:10])
	hex.Encode(t[24:], id[10:16])
	t[8], t[13], t[18], t[23] = '-', '-', '-', '-'
	return t
}

func parseID(text []byte) (ID, error) {
	var id ID
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return ID{}, errNotUUID()
	}
	var digits [32]byte
	n := copy(digits[:], text[:8])
	n += copy(digits[n:], text[9:13])
	n += copy(digits[n:], text[14:18])
	n += copy(digits[n:], text[19:23])
	copy(digits[n:], text[24:])
	if _, err := hex.Decode(id[:], digits[:]); err != nil {
		return ID{}, errNotUUID()
	}
	return id, nil
}

func errNotUUID() error {
	return errors.New("not a UUID: 36 characters are needed, hexadecimal digits in groups of 8-4-4-4-12")
}
