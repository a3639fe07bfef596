package store

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// maxPageBytes limits the total size of the rows of a page, as the database sends them. But a page has at
// least one row, even if that row is larger.
const maxPageBytes = 1 << 20

type meterKey struct{}

// WithMeter returns a context for CollectPage. CollectPage then calls meter with the size of each row, before the row is
// kept in memory. If meter returns an error, CollectPage ends with this error.
func WithMeter(ctx context.Context, meter func(bytes int) error) context.Context {
	return context.WithValue(ctx, meterKey{}, meter)
}

// CollectPage scans rows until limit or maxPageBytes is reached or no row is left. more reports
// whether there are more rows. The rest of the rows is discarded on arrival, so it uses no memory.
func CollectPage[T any](ctx context.Context, rows pgx.Rows, limit int, scan pgx.RowToFunc[T]) (page []T, more bool, err error) {
	defer rows.Close()
	meter, _ := ctx.Value(meterKey{}).(func(bytes int) error)
	for total := 0; rows.Next(); {
		size := rowSize(rows)
		if len(page) == limit || len(page) > 0 && total+size > maxPageBytes {
			more = true
			break
		}
		total += size
		if meter != nil {
			if err := meter(size); err != nil {
				return nil, false, err
			}
		}
		row, err := scan(rows)
		if err != nil {
			return nil, false, err
		}
		page = append(page, row)
	}
	rows.Close()
	return page, more, rows.Err()
}

func rowSize(rows pgx.Rows) (bytes int) {
	for _, value := range rows.RawValues() {
		bytes += len(value)
	}
	return bytes
}

// RowByName returns a function that reads the rows of one query into values of T. Each column is read
// into the field of its name, such as retry_count into RetryCount. For fields of type string, int64 and time.Time,
// null is read as the zero value. Every column must have an exported field, and every such field a column.
func RowByName[T any]() pgx.RowToFunc[T] {
	var row T
	var targets []any
	return func(result pgx.CollectableRow) (T, error) {
		if targets == nil {
			var err error
			if targets, err = fieldsByName(reflect.ValueOf(&row).Elem(), result.FieldDescriptions()); err != nil {
				return row, err
			}
		}
		err := result.Scan(targets...)
		return row, err
	}
}

// fieldIndexes has one map for each type that RowByName reads. The map has the index of each field, by the field's name in
// lower case.
var fieldIndexes sync.Map

// fieldsByName returns, for each column, a pointer to the field of row that the column is scanned into.
func fieldsByName(row reflect.Value, columns []pgconn.FieldDescription) ([]any, error) {
	cached, ok := fieldIndexes.Load(row.Type())
	if !ok {
		indexes := map[string][]int{}
		for _, f := range reflect.VisibleFields(row.Type()) {
			if f.IsExported() && !f.Anonymous {
				indexes[strings.ToLower(f.Name)] = f.Index
			}
		}
		cached, _ = fieldIndexes.LoadOrStore(row.Type(), indexes)
	}
	indexes := cached.(map[string][]int)
	if len(columns) != len(indexes) {
		return nil, fmt.Errorf("%d columns for the %d fields of %s", len(columns), len(indexes), row.Type())
	}
	targets := make([]any, len(columns))
	for i, c := range columns {
		index, ok := indexes[strings.ReplaceAll(c.Name, "_", "")]
		if !ok {
			return nil, fmt.Errorf("%s has no field for the column %s", row.Type(), c.Name)
		}
		switch field := row.FieldByIndex(index).Addr().Interface().(type) {
		case *string:
			targets[i] = (*zeroText)(field)
		case *int64:
			targets[i] = (*zeroInt)(field)
		case *time.Time:
			targets[i] = (*zeroTime)(field)
		default:
			targets[i] = field
		}
	}
	return targets, nil
}

// Scan targets that read null as the zero value.
type (
	zeroText string
	zeroInt  int64
	zeroTime time.Time
)

func (z *zeroText) ScanText(v pgtype.Text) error {
	*z = zeroText(v.String)
	return nil
}

func (z *zeroInt) ScanInt64(v pgtype.Int8) error {
	*z = zeroInt(v.Int64)
	return nil
}

func (z *zeroTime) ScanTimestamptz(v pgtype.Timestamptz) error {
	*z = zeroTime(v.Time)
	return nil
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Execer is a pool, a connection or a transaction.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// QueryRows reads all rows that sql returns.
func QueryRows[T any](ctx context.Context, q Querier, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// QueryEach is Each for the rows that sql returns.
func QueryEach(ctx context.Context, q Querier, sql string, args, targets []any, each func()) error {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	return Each(rows, targets, each)
}

// Each scans each row into targets and then calls each.
func Each(rows pgx.Rows, targets []any, each func()) error {
	_, err := pgx.ForEachRow(rows, targets, func() error {
		each()
		return nil
	})
	return err
}

// CollectSet returns a function for QueuedQuery.Query that adds the values of the only column to set.
func CollectSet[K comparable](set map[K]bool) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var k K
		return Each(rows, []any{&k}, func() { set[k] = true })
	}
}

// QueryOne reads the one row that sql returns. If there is no row, the error is NotFound(noun).
func QueryOne[T any](ctx context.Context, q Querier, noun, sql string, args ...any) (T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T])
	if errors.Is(err, pgx.ErrNoRows) {
		return row, NotFound(noun)
	}
	return row, err
}

// QueryPage is CollectPage for the rows that sql returns. The last parameter of sql is its limit:
// QueryPage passes limit + 1, to find out whether there are more rows. The statement is Unprepared,
// since most of its parameters are optional filters.
func QueryPage[T any](ctx context.Context, q Querier, limit int, sql string, args ...any) (page []T, more bool, err error) {
	return QueryPageBy(ctx, q, limit, pgx.RowToStructByPos[T], sql, slices.Concat([]any{Unprepared}, args, []any{limit + 1})...)
}

// QueryPageBy is CollectPage for the rows that sql returns. If sql has a limit, args must have limit + 1.
func QueryPageBy[T any](ctx context.Context, q Querier, limit int, scan pgx.RowToFunc[T], sql string, args ...any) (page []T, more bool, err error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, false, err
	}
	return CollectPage(ctx, rows, limit, scan)
}

// QueryTime reads one time. null is read as the zero time.
func (db *DB) QueryTime(ctx context.Context, sql string) (time.Time, error) {
	var at *time.Time
	err := db.Hot.QueryRow(ctx, sql).Scan(&at)
	return OrZero(at), err
}
