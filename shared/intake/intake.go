// Package intake validates and accepts submitted messages, from a POST to /api/v1/messages or a
// frame of a WebSocket, with the same rules and the same acknowledgements for both.
//
// A message is acknowledged as saved once its row is committed, or as accepted once a stream has it.
// An accepted message will be saved, unless a failure happens first against which the stream's
// durability does not protect. A request is a repeat if the primary key, or the subject in the stream,
// is taken.
package intake

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/cache"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/store/messages"
)

const (
	durabilityTTL = time.Minute // how long the durability is used before it is read again
	lookUpTimeout = 2 * time.Second
)

// Intake accepts messages. Any number of goroutines may use it.
type Intake struct {
	admin    *admin.Store
	messages *messages.Store
	env      *fn.Env
	twoPhase settings.TwoPhase

	knownDurability cache.Value[bus.Durability]
	madeRoomAt      atomic.Int64 // when save was last woken to make room, in Unix seconds
}

// New does not use the network.
func New(env *fn.Env) *Intake {
	in := &Intake{admin: env.Admin, messages: env.Messages, env: env, twoPhase: env.Config.TwoPhase}
	in.knownDurability.Timeout, in.knownDurability.Keep = lookUpTimeout, durabilityTTL
	in.knownDurability.Read = func(ctx context.Context) (bus.Durability, error) {
		return env.Bus().Durability(ctx, in.twoPhase.MonitorURL)
	}
	return in
}

// Submitted is the result of a valid request.
type Submitted struct {
	Ack      api.MessageAck
	SavedAt  time.Time // by the database's clock; zero while the message is only accepted
	Replayed bool      // an earlier request submitted the message
}
