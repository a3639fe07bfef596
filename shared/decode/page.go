package decode

import (
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

const (
	defaultLimit = 50
	maxLimit     = 200
)

// Page checks the size of a page.
func (r *Rules) Page(limit *int) { r.Between("limit", limit, 1, maxLimit) }

// PageByID checks the size of a page, and the id of the row that the page before ended with.
func (r *Rules) PageByID(limit *int, after string) {
	r.Page(limit)
	_, err := task.ParseID(after)
	r.After(after == "" || err == nil)
}

// After refuses an after that names no row of the list.
func (r *Rules) After(ok bool) {
	r.When(!ok, "after", "must be the next_after of the page before")
}

// PageLimit is the number of rows of a page, given the limit of its request.
func PageLimit(limit *int) int {
	if limit == nil {
		return defaultLimit
	}
	return *limit
}

// latestMicros is in the year 2255. No stored row has a later time.
const latestMicros = 1 << 53

// ParseMicros reads the time of a next_after, in microseconds since 1970.
func ParseMicros(text string) (at time.Time, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return time.UnixMicro(n), err == nil && n >= 0 && n < latestMicros
}
