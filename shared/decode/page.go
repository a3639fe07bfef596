package decode

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

const (
	defaultLimit = 50
	maxLimit     = 200
)

// Page checks the size of a page.
func (r *BadFields) Page(limit *int) { r.Between("limit", limit, 1, maxLimit) }

// PageByID checks the size of a page and the field after, which has the id of the last row of the previous page.
func (r *BadFields) PageByID(limit *int, after string) {
	r.Page(limit)
	_, err := task.ParseID(after)
	r.AfterIsValid(after == "" || err == nil)
}

// AfterIsValid adds the field after as a bad field unless valid is true.
func (r *BadFields) AfterIsValid(valid bool) {
	r.When(!valid, "after", "must be the next_after of the page before")
}

// PageLimit returns the number of rows of a page for the limit of its request.
func PageLimit(limit *int) int { return ValueOr(limit, defaultLimit) }

// latestMicros is in the year 2255, later than any stored time.
const latestMicros = 1 << 53

// TimeCursor returns the next_after of a page that is sorted by a time and an id.
func TimeCursor(at time.Time, id any) string { return fmt.Sprintf("%d.%v", at.UnixMicro(), id) }

// ParseTimeCursor reads a result of TimeCursor. For "", the cursor of the first page, it returns zero values and true.
func ParseTimeCursor[ID any](text string, parseID func(string) (ID, error)) (at time.Time, id ID, ok bool) {
	if text == "" {
		return at, id, true
	}
	micros, rest, _ := strings.Cut(text, ".")
	if at, ok = ParseMicros(micros); !ok {
		return at, id, false
	}
	id, err := parseID(rest)
	return at, id, err == nil
}

// ParseMicros reads the time in a next_after: microseconds since 1970.
func ParseMicros(text string) (at time.Time, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return time.UnixMicro(n), err == nil && n >= 0 && n < latestMicros
}
