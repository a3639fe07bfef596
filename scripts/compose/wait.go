package main

import (
	"context"
	"fmt"
	"time"
)

const waitTimeout = time.Minute // for the stack to reach an expected state

// waitUntil calls check until it returns no error, for at most waitTimeout.
func waitUntil(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("after %v still: %w", waitTimeout, err)
		}
	}
}
