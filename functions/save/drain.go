package save

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
)

// drainInterval is how often Drain counts.
const drainInterval = 200 * time.Millisecond

// Drain is the command drain. It returns once every message in the stream is saved or a dead letter,
// whatever the state of its consumers. If new messages are accepted meanwhile, it may never return.
func Drain(ctx context.Context, env *fn.Env, _ struct{}) error {
	for printed := math.MaxInt; ; {
		left, err := countUnsaved(ctx, env)
		if err != nil {
			return err
		}
		if left != printed {
			fmt.Printf("%d accepted messages are not saved\n", left)
			printed = left
		}
		if left == 0 {
			return printDeadLetters(ctx, env)
		}
		select {
		case <-time.After(drainInterval):
		case <-ctx.Done():
			return fmt.Errorf("interrupted with %d accepted messages not saved; a trigger and the function save must run", left)
		}
	}
}

// countUnsaved counts the messages in the stream that are neither saved nor a dead letter.
func countUnsaved(ctx context.Context, env *fn.Env) (n int, err error) {
	state, err := env.Bus().AcceptState(ctx)
	if err != nil {
		return 0, err
	}
	checked, err := env.Messages.Checked(ctx, state.Created)
	if err != nil {
		return 0, err
	}
	return n, eachUnsaved(ctx, env, checked.Place, state.LastSeq, state, func(found []bus.AcceptedMessage, _ uint64) error {
		n += len(found)
		return nil
	})
}

// printDeadLetters prints how many accepted messages are dead letters: only an operator can act on
// them.
func printDeadLetters(ctx context.Context, env *fn.Env) error {
	dead, err := env.Messages.CountBuried(ctx)
	if err == nil && dead > 0 {
		fmt.Printf("%d accepted messages could not be saved and are dead letters of the function save\n", dead)
	}
	return err
}
