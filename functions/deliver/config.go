package deliver

import (
	"time"

	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/task"
)

// Config has the function's settings.
type Config struct {
	Timeout      time.Duration `envconfig:"SENDONCE_WEBHOOK_TIMEOUT" default:"15s" desc:"timeout of one call to a webhook or to a message's URL, 1s to 20s"`
	DisableAfter time.Duration `envconfig:"SENDONCE_WEBHOOK_DISABLE_AFTER" default:"120h" desc:"a webhook endpoint is disabled when all calls to it have failed for this long"`
}

// Validate names every setting whose value is not acceptable.
func (c *Config) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(c.Timeout < time.Second || c.Timeout > 20*time.Second, "SENDONCE_WEBHOOK_TIMEOUT", "must be between 1s and 20s")
	bad.When(c.DisableAfter <= 0, "SENDONCE_WEBHOOK_DISABLE_AFTER", "must be more than 0")
	return bad
}
