// Package intake saves or accepts submitted messages, from a POST to /api/v1/messages or a
// frame of a WebSocket, with the same rules and the same acknowledgements for both.
//
// A message is acknowledged as saved once its row is committed, or as accepted once the stream of accepted messages
// has it. An accepted message will be saved, unless a failure that the stream does not survive (see
// bus.Durability) happens first. A request is a repeat if Postgres has a row with the id of its message, or the
// stream has a message with this id in its subject. The id is computed from the caller and the fields from and client_msg_id.
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
)

const (
	durabilityTTL     = time.Minute     // how long the durability of the stream is used before it is read again
	durabilityTimeout = 2 * time.Second // of reading the durability
)

// Intake saves or accepts messages. Any number of goroutines may use it.
type Intake struct {
	env      *fn.Env
	twoPhase settings.TwoPhase

	knownDurability cache.Value[bus.Durability]
	madeRoomAt      atomic.Int64 // when makeRoom last woke the function save, in Unix seconds
}

// New returns an Intake without using the network.
func New(env *fn.Env) *Intake {
	in := &Intake{env: env, twoPhase: env.Config.TwoPhase}
	in.knownDurability.Timeout, in.knownDurability.Keep = durabilityTimeout, durabilityTTL
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
