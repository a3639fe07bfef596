package fn

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	defaultLimit = 50
	maxLimit     = 200
)

// Page holds what asks for a page of rows.
func (r *Rules) Page(limit *int) { r.Between("limit", limit, 1, maxLimit) }

// PageByID holds what asks for a page of rows that have a UUID.
func (r *Rules) PageByID(limit *int, after string) {
	r.Page(limit)
	_, err := task.ParseID(after)
	r.When(after != "" && err != nil, "after", "must be the next_after of the page before")
}

// LimitOf is how many rows a page may have, given what its request says.
func LimitOf(limit *int) int {
	if limit == nil {
		return defaultLimit
	}
	return *limit
}

// latestMicros is in the year 2255: what is later is no time of a stored row.
const latestMicros = 1 << 53

// ParseMicros reads a time that a next_after gave as microseconds since 1970.
func ParseMicros(text string) (at time.Time, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return time.UnixMicro(n), err == nil && n >= 0 && n < latestMicros
}

// PageOf makes a page of stored rows; id names a row for next_after.
func PageOf[R, W, I any](rows []R, more bool, wire func(R) W, id func(R) I) api.Page[W] {
	page := api.Page[W]{Items: make([]W, len(rows))}
	for i, row := range rows {
		page.Items[i] = wire(row)
	}
	if more {
		page.NextAfter = fmt.Sprint(id(rows[len(rows)-1]))
	}
	return page
}
