package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// maxPage bounds the rows of a page, in bytes as the database sends them. A page
// has at least one row, however long.
const maxPage = 1 << 20

// meterKey is where a context keeps its meter.
type meterKey struct{}

// WithMeter has meter called with the bytes of each row of a page before the row is
// kept in memory. Its error ends the reading.
func WithMeter(ctx context.Context, meter func(bytes int) error) context.Context {
	return context.WithValue(ctx, meterKey{}, meter)
}

// readPage reads rows until there are limit, maxPage is reached or none is left;
// more says that there are more. each reads the row that rows is at. What is not
// read costs no memory: it is passed over as it comes.
func readPage(ctx context.Context, rows pgx.Rows, limit int, each func() error) (more bool, err error) {
	defer rows.Close()
	meter, _ := ctx.Value(meterKey{}).(func(bytes int) error)
	for n, total := 0, 0; rows.Next(); n++ {
		size := rowSize(rows)
		if n == limit || n > 0 && total+size > maxPage {
			more = true
			break
		}
		total += size
		if meter != nil {
			if err := meter(size); err != nil {
				return false, err
			}
		}
		if err := each(); err != nil {
			return false, err
		}
	}
	rows.Close()
	return more, rows.Err()
}

func rowSize(rows pgx.Rows) (bytes int) {
	for _, value := range rows.RawValues() {
		bytes += len(value)
	}
	return bytes
}

// collectPage is readPage for rows that scan makes values of.
func collectPage[T any](ctx context.Context, rows pgx.Rows, limit int, scan pgx.RowToFunc[T]) (page []T, more bool, err error) {
	more, err = readPage(ctx, rows, limit, func() error {
		row, err := scan(rows)
		page = append(page, row)
		return err
	})
	return page, more, err
}
