package main

import (
	"context"
	"fmt"
	"time"
)

const waitTimeout = time.Minute // for the stack to reach an expected state

// retryUntil calls check until it returns no error, for at most limit.
func retryUntil(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("after %v still: %w", limit, err)
		}
	}
}
