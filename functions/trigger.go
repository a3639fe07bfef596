package functions

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/trigger"
)

// triggerConfig has the settings of the command trigger.
type triggerConfig struct {
	FunctionsURL string        `envconfig:"SENDONCE_FUNCTIONS_URL" default:"http://127.0.0.1:8000" desc:"URL of the event functions; the trigger adds /events/{function}, and replaces a {function} in this URL, as in http://{function}:8000, by the name of the function"`
	User         string        `envconfig:"SENDONCE_TRIGGER_USER" desc:"name of the caller that the trigger uses to call the functions; if SENDONCE_TRIGGER_PASSWORD is set, too, migrate creates this caller with the role trigger, or changes its password; empty = the trigger calls as the built-in admin"`
	Password     string        `envconfig:"SENDONCE_TRIGGER_PASSWORD" secret:"true" desc:"password of the caller SENDONCE_TRIGGER_USER; migrate requires at least 24 characters, which must be random"`
	SafetyTick   time.Duration `envconfig:"SENDONCE_SAFETY_TICK" default:"15m" desc:"how often sweep, relay, deliver, save and wechat are called without an event, in case a wake-up was lost"`
}

// runTrigger delivers events to the functions until ctx ends or the server of the probes fails, and returns when the deliveries in
// progress have ended. It does not use Postgres. At the address where a function would listen, it serves
//
//   - /healthz: 503 if a trigger.Route hangs, which only a restart can resolve (see trigger.Trigger.Alive). While NATS
//     or the functions are unavailable it is 200;
//   - /readyz: 503 with the reason while NATS is unavailable, a route does not pull, or the stream WAKE stores nothing;
//   - /metrics: the counts and times of deliveries, the state of the trigger, and the metrics that every process has.
func runTrigger(ctx context.Context, env *fn.Env, cfg triggerConfig) error {
	if cfg.SafetyTick < time.Second {
		return errors.New("SENDONCE_SAFETY_TICK must be at least 1s")
	}
	if cfg.User == "" {
		if env.Config.Password == "" {
			return errors.New("the trigger needs SENDONCE_TRIGGER_USER with SENDONCE_TRIGGER_PASSWORD, or BASIC_AUTH_PASSWORD: it calls the functions with the password, for which BASIC_AUTH_PASSWORD_HASH is not enough")
		}
		cfg.User, cfg.Password = env.Config.Username, env.Config.Password
	}
	deliveries := env.Metrics().TriggerDeliveries()
	routes := slices.Concat(trigger.Routes(cfg.SafetyTick), trigger.SaveRoutes(env.Config.TwoPhase, cfg.SafetyTick))
	t, err := trigger.New(env.Bus(), env.Log, trigger.Config{
		BaseURL: cfg.FunctionsURL, User: cfg.User, Password: cfg.Password, DrainTimeout: env.Config.DrainTimeout,
		OnDelivery: deliveries.Observe,
	}, routes)
	if err != nil {
		return err
	}
	t.CollectState(env.Metrics())
	serve, err := fn.ListenForProbes(ctx, env, t.Alive, t.Ready)
	if err != nil {
		return err
	}
	// The server of the probes runs until the last delivery has ended. If it fails, the trigger stops.
	probesCtx, stopProbes := context.WithCancel(context.WithoutCancel(ctx))
	defer stopProbes()
	ctx, stopTrigger := context.WithCancel(ctx)
	defer stopTrigger()
	probesErr := make(chan error, 1)
	go func() {
		probesErr <- serve(probesCtx)
		stopTrigger()
	}()
	env.Log.Info("triggering", "functions", cfg.FunctionsURL)
	t.Run(ctx)
	stopProbes()
	return <-probesErr
}
