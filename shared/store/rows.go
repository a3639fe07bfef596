package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

// CollectPage is readPage for rows that scan makes values of.
func CollectPage[T any](ctx context.Context, rows pgx.Rows, limit int, scan pgx.RowToFunc[T]) (page []T, more bool, err error) {
	more, err = readPage(ctx, rows, limit, func() error {
		row, err := scan(rows)
		page = append(page, row)
		return err
	})
	return page, more, err
}

// Querier is a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// QueryOne reads the one row that sql gives; task.CodeNotFound when there is none.
func QueryOne[T any](ctx context.Context, q Querier, what, sql string, args ...any) (T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T])
	if errors.Is(err, pgx.ErrNoRows) {
		return row, NotFound(what)
	}
	return row, err
}

// QueryPage reads a page of at most limit rows (see readPage). The last parameter of sql is its limit, to
// which it adds one to learn whether there are more. It is planned for its very
// parameters, as most of them are filters that may be absent.
func QueryPage[T any](ctx context.Context, q Querier, limit int, sql string, args ...any) (page []T, more bool, err error) {
	rows, err := q.Query(ctx, sql, slices.Concat([]any{Unprepared}, args, []any{limit + 1})...)
	if err != nil {
		return nil, false, err
	}
	return CollectPage(ctx, rows, limit, pgx.RowToStructByPos[T])
}

// QueryTime reads one time, zero for null.
func (db *DB) QueryTime(ctx context.Context, sql string) (time.Time, error) {
	var at *time.Time
	err := db.Hot.QueryRow(ctx, sql).Scan(&at)
	return OrZero(at), err
}

// Execer is a pool or a transaction.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}
