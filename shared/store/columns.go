package store

import (
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sendonce/sendonce/shared/task"
)

// column returns one array parameter of a statement: a field of every row.
func column[R, V any](rows []R, field func(R) V) []V {
	values := make([]V, len(rows))
	for i, row := range rows {
		values[i] = field(row)
	}
	return values
}

func collectSet[K comparable](set map[K]bool) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var k K
		_, err := pgx.ForEachRow(rows, []any{&k}, func() error {
			set[k] = true
			return nil
		})
		return err
	}
}

// collectTimes reads rows of an id and a time.
func collectTimes(times map[task.ID]time.Time) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var id task.ID
		var at time.Time
		_, err := pgx.ForEachRow(rows, []any{&id, &at}, func() error {
			times[id] = at
			return nil
		})
		return err
	}
}

// orNull is nil, which is null, for a zero value.
func orNull[V comparable](v V) *V {
	var zero V
	if v == zero {
		return nil
	}
	return &v
}

func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func idOrNull(id task.ID) *task.ID {
	if id.IsZero() {
		return nil
	}
	return &id
}

// notNull keeps an absent list from becoming a null.
func notNull(list []string) []string { return append([]string{}, list...) }

// timeOrInfinity takes the zero time for one after all others.
func timeOrInfinity(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

// anyHash is a value that hashtextextended may give, by chance.
const anyHash = `((random() - 0.5) * 18446744073709551615)::bigint`
