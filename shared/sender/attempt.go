package sender

import (
	"context"
	"errors"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// attempt is a claimed task until its report gets a response.
type attempt struct {
	task     api.ClaimedTask
	ctx      context.Context // of the send; ends when the claim is lost, shortly before the lease ends, or with the grace period
	cancel   context.CancelCauseFunc
	lifetime context.Context // ends when done is called; until then the lease is extended
	done     func()          // ends the lifetime and frees the slot
	expiry   *time.Timer     // cancels ctx before the lease ends
}

var (
	errLost    = errors.New("the sender has lost the claim")
	errExpired = errors.New("the lease could not be extended in time")
	errStopped = errors.New("the sender is stopping")
)
