package sender

import (
	"context"
	"errors"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// attempt is a claimed task until done is called: when the server has accepted its report or refused it permanently,
// when its claim was lost before the send, or when the run ends.
type attempt struct {
	task     api.ClaimedTask
	ctx      context.Context // of the send; ends if the claim is lost, shortly before the lease ends, or with the grace period
	cancel   context.CancelCauseFunc
	lifetime context.Context // ends when done is called; until then the lease is extended
	done     func()          // ends the lifetime and frees the slot
	expiry   *time.Timer     // cancels ctx before the lease ends
}

var (
	errLost    = errors.New("the claim has ended, or the task has expired")
	errExpired = errors.New("the lease could not be extended in time")
	errStopped = errors.New("the sender is stopping")
)
