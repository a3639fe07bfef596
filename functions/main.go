// Command sendonce is every function of Sendonce in one binary. FUNCTION_TARGET
// picks the one that it serves; unset, it serves all.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/functions/admin"
	"github.com/sendonce/sendonce/functions/claim"
	"github.com/sendonce/sendonce/functions/deliver"
	"github.com/sendonce/sendonce/functions/messages"
	"github.com/sendonce/sendonce/functions/relay"
	"github.com/sendonce/sendonce/functions/report"
	"github.com/sendonce/sendonce/functions/save"
	"github.com/sendonce/sendonce/functions/stream"
	"github.com/sendonce/sendonce/functions/submit"
	"github.com/sendonce/sendonce/functions/subscribe"
	"github.com/sendonce/sendonce/functions/sweep"
	"github.com/sendonce/sendonce/functions/webhooks"
	"github.com/sendonce/sendonce/functions/wechat"
	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
)

// catalogue is every function, one line each.
func catalogue() []fn.Function {
	return []fn.Function{
		submit.Function,
		claim.Function,
		report.Function,
		subscribe.Function,
		messages.Function,
		stream.Function,
		webhooks.Function,
		admin.Function,
		sweep.Function,
		relay.Function,
		deliver.Function,
		save.Function,
		wechat.Function,
	}
}

// words is what the binary does beside serving.
func words() []fn.Word {
	return []fn.Word{
		{Name: "migrate", Help: "bring the database of DATABASE_URL to this version; makes roles and log partitions", Run: migrate},
		{Name: "archive", Help: "drop old logs and move old finished tasks to archived_tasks now, as sweep does in time: [--before 2026-01-31] [--dry-run]", Run: sweep.Archive},
		fn.NewWord("trigger", "carry events from NATS to the functions; stays up, any number may run", trigger),
		save.Drain,
	}
}

func main() {
	os.Exit(fn.Main(context.Background(), os.Args[1:], words(), catalogue()...))
}

// migrate gives the roles the password of DATABASE_URL, as the functions log
// in with that URL and the role's name.
func migrate(ctx context.Context, env *fn.Env, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("migrate takes no arguments")
	}
	if env.Config.DatabaseURL == "" {
		return fmt.Errorf("DATABASE_URL is not set; give the URL of a user that owns the database")
	}
	conn, err := pgx.Connect(ctx, env.Config.DatabaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	applied, err := migrations.Up(ctx, conn, migrations.Options{
		HotRole: env.Config.HotRole, ReadRole: env.Config.ReadRole, Password: conn.Config().Password,
	})
	for _, name := range applied {
		fmt.Println("applied", name)
	}
	if err == nil && len(applied) == 0 {
		fmt.Println("the database is up to date")
	}
	return err
}

// triggerConfig is the settings of the word trigger.
type triggerConfig struct {
	FunctionsURL string        `envconfig:"SENDONCE_FUNCTIONS_URL" default:"http://127.0.0.1:8000" desc:"where the event functions are: events go to this URL with /events/{function} after it; {function} in it, as in http://{function}:8000, stands for the name"`
	User         string        `envconfig:"SENDONCE_TRIGGER_USER" desc:"caller with the role trigger; empty takes the built-in admin"`
	Password     string        `envconfig:"SENDONCE_TRIGGER_PASSWORD" secret:"true" desc:"password of that caller"`
	SafetyTick   time.Duration `envconfig:"SENDONCE_SAFETY_TICK" default:"15m" desc:"how often sweep, relay, deliver, save and wechat look although nothing woke them"`
}

// trigger runs until ctx ends. It knows no SQL: what it carries are hints, and
// the rows that the functions find are the truth.
func trigger(ctx context.Context, env *fn.Env, cfg triggerConfig) error {
	if cfg.SafetyTick < time.Second {
		return errors.New("SENDONCE_SAFETY_TICK must be at least 1s")
	}
	if cfg.User == "" {
		cfg.User, cfg.Password = env.Config.Username, env.Config.Password
	}
	served := map[string]bool{}
	for _, f := range catalogue() {
		served[f.Name] = true
	}
	two := env.Config.TwoPhase
	routes := slices.Concat(bus.Routes(cfg.SafetyTick), bus.SaveRoutes(bus.SaveConfig{
		Stream: two.Stream, Shards: two.Shards, BatchSize: two.BatchSize, BatchWait: two.BatchWait, DeliverBeforeSaved: two.DeliverBeforeSaved, Tick: cfg.SafetyTick,
	}))
	routes = slices.DeleteFunc(routes, func(r bus.Route) bool { return !served[r.Function] })
	return env.RunTrigger(ctx, bus.TriggerConfig{BaseURL: cfg.FunctionsURL, User: cfg.User, Password: cfg.Password}, routes)
}
