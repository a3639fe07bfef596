package store

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Column returns a field of every row, as an array parameter of a statement.
func Column[R, V any](rows []R, field func(R) V) []V {
	values := make([]V, len(rows))
	for i, row := range rows {
		values[i] = field(row)
	}
	return values
}

// OrNull returns nil, which is null in SQL, for a zero value.
func OrNull[V comparable](v V) *V {
	var zero V
	if v == zero {
		return nil
	}
	copied := v // &v would make Go allocate v even if the result is nil
	return &copied
}

// TimeOrNull is OrNull for a time. A zero time in any location is null.
func TimeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	copied := t
	return &copied
}

func OrZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// NotNull returns an empty list for nil, which would be null in SQL.
func NotNull(list []string) []string { return append([]string{}, list...) }

// TimeOrInfinity returns infinity, which is after all other times, for the zero time.
func TimeOrInfinity(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

// RandomHash is SQL for a random value in the range of hashtextextended.
const RandomHash = `((random() - 0.5) * 18446744073709551615)::bigint`
