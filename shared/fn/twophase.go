package fn

import (
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// TwoPhase is how messages may be acknowledged as accepted before they are saved
// (seed 004 section 3). All functions and the trigger must agree on it.
type TwoPhase struct {
	Enabled            bool          `envconfig:"TWO_PHASE_ENABLED" default:"false" desc:"true acknowledges messages that ask for ack accepted from a stream, before they are in Postgres"`
	DeliverBeforeSaved bool          `envconfig:"TWO_PHASE_DELIVER_BEFORE_SAVED" default:"false" desc:"true publishes accepted messages to their receivers without waiting for Postgres"`
	FailOpen           bool          `envconfig:"TWO_PHASE_FAIL_OPEN" default:"true" desc:"while the stream cannot take a message: true saves it at once instead, false answers 503"`
	Stream             string        `envconfig:"TWO_PHASE_STREAM" default:"ACCEPTED" desc:"name of the stream of accepted messages"`
	Shards             int           `envconfig:"TWO_PHASE_SHARDS" default:"1" desc:"parts of that stream that are saved side by side, 1 to 64; a sender's messages are all in one"`
	BatchSize          int           `envconfig:"TWO_PHASE_BATCH_SIZE" default:"100" desc:"accepted messages that are saved in one transaction, 1 to 500"`
	BatchWait          time.Duration `envconfig:"TWO_PHASE_BATCH_WAIT" default:"2ms" desc:"how long a batch waits for more after its first message"`
	DedupeWindow       time.Duration `envconfig:"TWO_PHASE_DEDUPE_WINDOW" default:"24h" desc:"how long the stream keeps a message after it is saved, to recognise a repeat"`
}

// Validate checks what the types alone cannot.
func (c *TwoPhase) Validate() []task.Field {
	var bad Rules
	bad.When(!task.ValidName(c.Stream, 32) || strings.Contains(c.Stream, "."), "TWO_PHASE_STREAM", "must be 1 to 32 characters of A-Z a-z 0-9 _ -")
	bad.When(c.Shards < 1 || c.Shards > 64, "TWO_PHASE_SHARDS", "must be between 1 and 64")
	bad.When(c.BatchSize < 1 || c.BatchSize > 500, "TWO_PHASE_BATCH_SIZE", "must be between 1 and 500")
	bad.When(c.BatchWait < 0 || c.BatchWait > time.Second, "TWO_PHASE_BATCH_WAIT", "must be between 0 and 1s")
	bad.When(c.DedupeWindow < time.Minute, "TWO_PHASE_DEDUPE_WINDOW", "must be at least 1m")
	return bad
}
