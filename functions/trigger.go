package functions

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/trigger"
)

// triggerConfig is the settings of the command trigger.
type triggerConfig struct {
	FunctionsURL string        `envconfig:"SENDONCE_FUNCTIONS_URL" default:"http://127.0.0.1:8000" desc:"URL of the event functions, to which /events/{function} is added; {function} in it, as in http://{function}:8000, is replaced by the name"`
	User         string        `envconfig:"SENDONCE_TRIGGER_USER" desc:"caller with the role trigger; migrate creates it if it has the password, too; empty = the built-in admin"`
	Password     string        `envconfig:"SENDONCE_TRIGGER_PASSWORD" secret:"true" desc:"password of that caller; for migrate at least 24 random characters"`
	SafetyTick   time.Duration `envconfig:"SENDONCE_SAFETY_TICK" default:"15m" desc:"how often sweep, relay, deliver, save and wechat run without an event"`
}

// runTrigger runs until ctx ends. It knows no SQL: what it delivers are wake-ups, and
// the rows that the functions find are the truth.
func runTrigger(ctx context.Context, env *fn.Env, cfg triggerConfig) error {
	if cfg.SafetyTick < time.Second {
		return errors.New("SENDONCE_SAFETY_TICK must be at least 1s")
	}
	if cfg.User == "" {
		if env.Config.Password == "" {
			return errors.New("the trigger needs SENDONCE_TRIGGER_USER with SENDONCE_TRIGGER_PASSWORD, or BASIC_AUTH_PASSWORD: it calls the functions, for which a hash is not enough")
		}
		cfg.User, cfg.Password = env.Config.Username, env.Config.Password
	}
	served := map[string]bool{}
	for _, f := range Catalogue() {
		served[f.Name] = true
	}
	two := env.Config.TwoPhase
	routes := slices.Concat(trigger.Routes(cfg.SafetyTick), trigger.SaveRoutes(trigger.SaveConfig{
		Stream: two.Stream, Shards: two.Shards, BatchSize: two.BatchSize, BatchWait: two.BatchWait, DeliverBeforeSaved: two.DeliverBeforeSaved, Tick: cfg.SafetyTick,
	}))
	routes = slices.DeleteFunc(routes, func(r trigger.Route) bool { return !served[r.Function] })
	return env.RunTrigger(ctx, trigger.Config{BaseURL: cfg.FunctionsURL, User: cfg.User, Password: cfg.Password}, routes)
}
