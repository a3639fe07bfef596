package save

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
)

// drainInterval is the time between two counts of Drain.
const drainInterval = 200 * time.Millisecond

// Drain is the command drain. It returns once every message in the stream of accepted messages is saved,
// rejected or a dead letter. If new messages are accepted all the time, it may run forever.
func Drain(ctx context.Context, env *fn.Env, _ struct{}) error {
	var after uint64
	for printed := math.MaxInt; ; {
		unsaved, savedTo, err := countUnsaved(ctx, env, after)
		if err != nil {
			return err
		}
		after = savedTo
		if unsaved != printed {
			fmt.Printf("%d accepted messages are not saved\n", unsaved)
			printed = unsaved
		}
		if unsaved == 0 {
			return printDeadLetters(ctx, env)
		}
		select {
		case <-time.After(drainInterval):
		case <-ctx.Done():
			return fmt.Errorf("interrupted with %d accepted messages not saved; a trigger and the function save must run", unsaved)
		}
	}
}

// countUnsaved counts the messages after a sequence number that are neither saved nor rejected nor dead letters. Up
// to the sequence number savedTo there are no such messages. The database alone does not show all of them: if NATS loses
// the end of the stream, it gives the same sequence numbers to new messages, which then look saved. So n is at least the
// number of messages that the function save has not acknowledged. countUnsaved does not start at the number in
// accepted_checked: a compromised function could have set it too high.
func countUnsaved(ctx context.Context, env *fn.Env, after uint64) (n int, savedTo uint64, err error) {
	state, err := env.Bus().AcceptState(ctx)
	if err != nil {
		return 0, after, err
	}
	savedTo = after
	err = eachUnsaved(ctx, env, max(after+1, state.FirstSeq), state.LastSeq, func(unsaved []bus.AcceptedMessage, scannedTo uint64) error {
		if n += len(unsaved); n == 0 {
			savedTo = scannedTo
		}
		return nil
	})
	return max(n, int(state.Unsaved)), savedTo, err
}

// printDeadLetters prints how many accepted messages are dead letters, if any.
func printDeadLetters(ctx context.Context, env *fn.Env) error {
	dead, err := env.Messages.CountDeadAccepted(ctx)
	if err == nil && dead > 0 {
		fmt.Printf("%d accepted messages could not be saved and are dead letters of the function save\n", dead)
	}
	return err
}
