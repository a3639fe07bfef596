package save

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
)

// Drain is the word that waits for the stream.
var Drain = fn.NewCommand("drain", "wait until every accepted message is saved, and say how many are not: before TWO_PHASE_ENABLED is taken back", drain)

// drainLook is how often drain asks.
const drainLook = 200 * time.Millisecond

// drain returns once the stream holds nothing that is neither saved nor a dead
// letter, whatever its consumers say. New messages must have stopped being
// accepted, else that may never be.
func drain(ctx context.Context, env *fn.Env, _ struct{}) error {
	for told := math.MaxInt; ; {
		left, err := left(ctx, env)
		if err != nil {
			return err
		}
		if left != told {
			fmt.Printf("%d accepted messages are not saved\n", left)
			told = left
		}
		if left == 0 {
			return tellDead(ctx, env)
		}
		select {
		case <-time.After(drainLook):
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

// tellDead names those of which nothing more will come by itself.
func tellDead(ctx context.Context, env *fn.Env) error {
	dead, err := env.DB().CountBuried(ctx)
	if err == nil && dead > 0 {
		fmt.Printf("%d accepted messages could not be saved and are dead letters of the function save\n", dead)
	}
	return err
}
