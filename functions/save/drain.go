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

// Drain is the command drain. It returns once each message of the stream is saved or a
// dead letter, whatever the state of its consumers. While new messages are accepted,
// that may never be.
func Drain(ctx context.Context, env *fn.Env, _ struct{}) error {
	for printed := math.MaxInt; ; {
		left, err := left(ctx, env)
		if err != nil {
			return err
		}
		if left != printed {
			fmt.Printf("%d accepted messages are not saved\n", left)
			printed = left
		}
		if left == 0 {
			return printDead(ctx, env)
		}
		select {
		case <-time.After(drainInterval):
		case <-ctx.Done():
			return fmt.Errorf("interrupted with %d accepted messages not saved; a trigger and the function save must run", left)
		}
	}
}

// left counts what the stream has that is not saved.
func left(ctx context.Context, env *fn.Env) (n int, err error) {
	state, err := env.Bus().AcceptState(ctx)
	if err != nil {
		return 0, err
	}
	checked, err := env.DB().Checked(ctx, state.Created)
	if err != nil {
		return 0, err
	}
	return n, unsaved(ctx, env, checked.Place, state.LastSeq, state, func(found []bus.AcceptedMessage, _ uint64) error {
		n += len(found)
		return nil
	})
}

// printDead prints how many messages nobody will save without an operator.
func printDead(ctx context.Context, env *fn.Env) error {
	dead, err := env.DB().CountBuried(ctx)
	if err == nil && dead > 0 {
		fmt.Printf("%d accepted messages could not be saved and are dead letters of the function save\n", dead)
	}
	return err
}
