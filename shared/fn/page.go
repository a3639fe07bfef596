package fn

import (
	"fmt"

	"github.com/sendonce/sendonce/shared/api"
)

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
