package store

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Column returns the values of one field in all rows, as an array parameter of a statement.
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
	return new(v) // &v would make Go allocate v even if the result is nil
}

// TimeOrNull is OrNull for a time. It returns nil for the zero time in any location.
func TimeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t)
}

// OrZero returns *v, or the zero value for nil.
func OrZero[V any](v *V) V {
	if v == nil {
		v = new(V)
	}
	return *v
}

// NotNull returns a copy of list. For nil, which would be null in SQL, it returns an empty list.
func NotNull(list []string) []string { return append([]string{}, list...) }

// TimeOrInfinity returns the time as a parameter. The zero time becomes infinity, which is after all other times.
func TimeOrInfinity(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

// RandomHash is SQL for a random value in the range of hashtextextended.
const RandomHash = `((random() - 0.5) * 18446744073709551615)::bigint`
