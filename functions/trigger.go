package functions

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/trigger"
)

// triggerConfig is the settings of the command trigger.
type triggerConfig struct {
	FunctionsURL string        `envconfig:"SENDONCE_FUNCTIONS_URL" default:"http://127.0.0.1:8000" desc:"URL of the event functions, to which /events/{function} is added; {function} in it, as in http://{function}:8000, is replaced by the name"`
	User         string        `envconfig:"SENDONCE_TRIGGER_USER" desc:"caller with the role trigger; migrate creates it if it has the password, too; empty = the built-in admin"`
	Password     string        `envconfig:"SENDONCE_TRIGGER_PASSWORD" secret:"true" desc:"password of that caller; for migrate at least 24 random characters"`
	SafetyTick   time.Duration `envconfig:"SENDONCE_SAFETY_TICK" default:"15m" desc:"how often sweep, relay, deliver, save and wechat run without an event"`
}

// runTrigger carries events to the functions until ctx ends, and returns when what was under
// way is settled, or with the reason why it could not begin. It knows no SQL: what it delivers
// are wake-ups, and the rows that the functions find are the truth. Meanwhile it serves
// probes and scrapes where a function would listen:
//
//   - /healthz is 503 when something here hangs, which only a restart cures (see
//     trigger.Trigger.Alive). NATS or functions that are away are no reason.
//   - /readyz is 503 while events are not carried, as without NATS, or not by all
//     routes; it names those that do not run and says why.
//   - /metrics has what was carried beside what every process counts.
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
	deliveries := env.Metrics().TriggerDeliveries()
	t, err := trigger.New(env.Bus(), env.Log, trigger.Config{
		BaseURL: cfg.FunctionsURL, User: cfg.User, Password: cfg.Password, DrainTimeout: env.Config.DrainTimeout,
		OnDelivery: func(d trigger.Delivery) { deliveries.Observe(d.Durable, d.Function, d.Status, d.Took) },
	}, triggerRoutes(env.Config.TwoPhase, cfg.SafetyTick))
	if err != nil {
		return err
	}
	t.CollectState(env.Metrics())
	probes, err := fn.ListenForProbes(ctx, env, t.Alive, t.Ready)
	if err != nil {
		return err
	}
	// Probes are served until the last event is settled; without a response to them no
	// events are carried.
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		served <- probes.Serve(serving)
		stop()
	}()
	env.Log.Info("triggering", "functions", cfg.FunctionsURL)
	t.Run(ctx)
	end()
	return <-served
}

// triggerRoutes returns the routes to the functions of the catalogue.
func triggerRoutes(two settings.TwoPhase, tick time.Duration) []trigger.Route {
	served := map[string]bool{}
	for _, f := range Catalogue() {
		served[f.Name] = true
	}
	routes := slices.Concat(trigger.Routes(tick), trigger.SaveRoutes(trigger.SaveConfig{
		Stream: two.Stream, Shards: two.Shards, BatchSize: two.BatchSize, BatchWait: two.BatchWait, DeliverBeforeSaved: two.DeliverBeforeSaved, Tick: tick,
	}))
	return slices.DeleteFunc(routes, func(r trigger.Route) bool { return !served[r.Function] })
}
