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

// ID is a UUID in its binary form. The ids of tasks are version 7 (RFC 9562), so
// they sort by the time they were made, as bytes, as text and in the database.
type ID [16]byte

const (
	ticksPerMilli = 1 << 12 // rand_a holds the fraction of the millisecond
	maxTick       = 1<<60 - 1
)

// lastTick is process-wide because the promise of NewID is: every caller draws
// from the one sequence.
var lastTick atomic.Uint64

// NewID makes a version 7 id by RFC 9562 section 6.2, method 3: 48 bits of Unix
// milliseconds, 12 bits of the millisecond's fraction, 62 random bits. Within one
// process each id is greater than every id made before, even in one tick of the
// clock or after the clock was set back. It never fails: without a source of
// randomness the process ends.
func NewID() ID {
	id := idAt(nextTick(tickOf(time.Now())))
	// The operating system's source, not a generator of this process: instances
	// cloned from one memory snapshot would repeat each other's numbers.
	rand.Read(id[8:])
	id[8] = id[8]&0x3f | 0x80
	return id
}

// IDFloor is the lowest id that NewID may make at t or later, to an accuracy of
// 245 ns; t before 1970 counts as 1970 and t past the year 10889 as its last tick.
func IDFloor(t time.Time) ID { return idAt(tickOf(t)) }

// ParseID reads the canonical text of a UUID of any version: 36 characters,
// hexadecimal digits in groups of 8-4-4-4-12, in either case.
func ParseID(s string) (ID, error) { return parseID([]byte(s)) }

// String is the canonical text, in lower case.
func (id ID) String() string {
	text := id.text()
	return string(text[:])
}

// MarshalText gives the same text as String and never fails.
func (id ID) MarshalText() ([]byte, error) {
	text := id.text()
	return text[:], nil
}

// UnmarshalText accepts what ParseID accepts. On an error id is unchanged.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, err := parseID(text)
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

// Time is the instant a version 7 id was made, in UTC, to an accuracy of 245 ns
// and never later than that instant; for other versions it means nothing.
// IDFloor(id.Time()) is at most id.
func (id ID) Time() time.Time {
	milli := binary.BigEndian.Uint64(id[:]) >> 16
	fraction := uint64(binary.BigEndian.Uint16(id[6:]) & (ticksPerMilli - 1))
	// Rounded up, else tickOf would put the time into the tick before.
	nano := (fraction*uint64(time.Millisecond) + ticksPerMilli - 1) / ticksPerMilli
	return time.UnixMilli(int64(milli)).Add(time.Duration(nano)).UTC()
}

// IsZero tells the zero value, which is never made by NewID.
func (id ID) IsZero() bool { return id == ID{} }

// Compare is -1, 0 or +1 as id sorts before, with or after other; Postgres sorts
// uuid alike.
func (id ID) Compare(other ID) int { return bytes.Compare(id[:], other[:]) }

// tickOf counts the 1/4096 milliseconds from 1970 to t.
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

// nextTick claims now, or the tick after the last one claimed when that is later.
func nextTick(now uint64) uint64 {
	for {
		last := lastTick.Load()
		next := max(now, last+1)
		if lastTick.CompareAndSwap(last, next) {
			return next
		}
	}
}

// idAt is the lowest version 7 id of a tick.
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
