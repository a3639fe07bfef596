package decode

import "time"

// ValueOr returns the value of an optional field, or unset where it was left out.
func ValueOr[T any](field *T, unset T) T {
	if field == nil {
		return unset
	}
	return *field
}

// SecondsOr returns the duration of an optional number of seconds, or unset where it was left out.
func SecondsOr[N int | int64](field *N, unset time.Duration) time.Duration {
	if field == nil {
		return unset
	}
	return time.Duration(*field) * time.Second
}
