package decode

import (
	"reflect"
	"time"
)

// ValidOffset reports whether the zone of a time is less than a day from UTC. Go parses times with the
// offsets +24:00 and +23:60, but does not write such times as JSON.
func ValidOffset(at time.Time) bool {
	const day = 24 * 60 * 60
	_, seconds := at.Zone()
	return -day < seconds && seconds < day
}

// setTime sets v, a time.Time, from a text, and reports whether the text is a time with a ValidOffset.
func setTime(v reflect.Value, text string) bool {
	at := v.Addr().Interface().(*time.Time)
	return at.UnmarshalText([]byte(text)) == nil && ValidOffset(*at)
}
