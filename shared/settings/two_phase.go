package settings

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/task"
)

// TwoPhase has the settings of messages that are acknowledged as accepted before they are saved. All
// functions and the trigger must have the same values.
type TwoPhase struct {
	Enabled            bool           `envconfig:"TWO_PHASE_ENABLED" default:"false" desc:"true lets messages be acknowledged as accepted when they are in a stream, before they are in Postgres"`
	DefaultAck         string         `envconfig:"TWO_PHASE_DEFAULT_ACK" default:"saved" desc:"acknowledgement of a message that does not set ack: saved, or accepted, which needs TWO_PHASE_ENABLED=true"`
	DeliverBeforeSaved bool           `envconfig:"TWO_PHASE_DELIVER_BEFORE_SAVED" default:"false" desc:"true publishes accepted messages to subjects and users without waiting for Postgres"`
	FailOpen           bool           `envconfig:"TWO_PHASE_FAIL_OPEN" default:"true" desc:"when the stream cannot store a message: true saves it at once instead, false returns 503"`
	Stream             string         `envconfig:"TWO_PHASE_STREAM" default:"ACCEPTED" desc:"name of the stream of accepted messages"`
	Shards             int            `envconfig:"TWO_PHASE_SHARDS" default:"1" desc:"parts of the stream of accepted messages that are saved in parallel, 1 to 64; all messages of a sender are in one"`
	BatchSize          int            `envconfig:"TWO_PHASE_BATCH_SIZE" default:"500" desc:"most accepted messages that are saved in one transaction, 1 to 500"`
	BatchWait          time.Duration  `envconfig:"TWO_PHASE_BATCH_WAIT" default:"2ms" desc:"how long a batch waits for more messages after its first"`
	DedupeWindow       time.Duration  `envconfig:"TWO_PHASE_DEDUPE_WINDOW" default:"24h" desc:"how long the stream of accepted messages keeps a message after it is saved, to recognise repeats"`
	Durability         bus.Durability `envconfig:"TWO_PHASE_DURABILITY" desc:"durability that accepted messages must have: process, host, replicated or replicated-host, see docs/messages.md; a process does not start if the stream promises less, and accepts no message while it is unknown what the stream promises; empty = whatever the stream promises"`
	MonitorURL         string         `envconfig:"TWO_PHASE_NATS_MONITOR_URL" desc:"monitoring URLs of the NATS servers that keep the stream, as http://host:8222, separated by commas; without these URLs the functions cannot check that writes are synced, and never promise host or replicated-host"`
}

// Validate checks what the types alone cannot.
func (c *TwoPhase) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(c.DefaultAck != api.AckSaved && c.DefaultAck != api.AckAccepted, "TWO_PHASE_DEFAULT_ACK", "must be saved or accepted")
	bad.When(c.DefaultAck == api.AckAccepted && !c.Enabled, "TWO_PHASE_DEFAULT_ACK", "needs TWO_PHASE_ENABLED=true: set that too, or saved")
	bad.When(!task.ValidName(c.Stream, 32) || strings.Contains(c.Stream, "."), "TWO_PHASE_STREAM", "must be 1 to 32 characters of A-Z a-z 0-9 _ -")
	bad.When(c.Shards < 1 || c.Shards > 64, "TWO_PHASE_SHARDS", "must be between 1 and 64")
	bad.When(c.BatchSize < 1 || c.BatchSize > 500, "TWO_PHASE_BATCH_SIZE", "must be between 1 and 500")
	bad.When(c.BatchWait < 0 || c.BatchWait > time.Second, "TWO_PHASE_BATCH_WAIT", "must be between 0 and 1s")
	bad.When(c.DedupeWindow < time.Minute, "TWO_PHASE_DEDUPE_WINDOW", "must be at least 1m")
	for monitor := range strings.SplitSeq(c.MonitorURL, ",") {
		u, err := url.Parse(strings.TrimSpace(monitor))
		valid := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
		bad.When(c.MonitorURL != "" && !valid, "TWO_PHASE_NATS_MONITOR_URL", "must be URLs such as http://host:8222, separated by commas")
	}
	return bad
}

// Accepts reports whether a message is to be acknowledged as accepted, before it is saved. ack is the field ack of its
// request; "" = DefaultAck.
func (c *TwoPhase) Accepts(ack string) bool {
	return c.Enabled && cmp.Or(ack, c.DefaultAck) == api.AckAccepted
}
