package decode

import "time"

// ValueOr returns the value of an optional field, or the default if it is absent.
func ValueOr[T any](field *T, defaultValue T) T {
	if field == nil {
		return defaultValue
	}
	return *field
}

// SecondsOr returns the duration of an optional number of seconds, or the default if it is absent.
func SecondsOr[N int | int64](field *N, defaultValue time.Duration) time.Duration {
	if field == nil {
		return defaultValue
	}
	return time.Duration(*field) * time.Second
}
