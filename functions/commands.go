package functions

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/functions/save"
	"github.com/sendonce/sendonce/functions/sweep"
	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/command"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

// Commands returns the commands that the binary has in addition to those of command.Main.
func Commands() []command.Command {
	return []command.Command{
		command.New("migrate", "bring the database to this version, as its owner (SENDONCE_OWNER_URL): tables, roles and log partitions", migrate),
		{Name: "archive", Help: "do at once what each sweep does in part: drop old logs, move tasks and messages that ended long ago to the archive tables, delete other old rows: [--before 2026-01-31] [--dry-run]", Run: sweep.Archive},
		command.New("reencrypt", "encrypt the stored secrets with the first of SENDONCE_ENCRYPTION_KEYS; run it after a new key is set everywhere, then remove the old one", reencrypt),
		command.New("trigger", "deliver events from NATS to the functions; stays up, any number may run", runTrigger),
		command.New("drain", "wait until every accepted message is saved; print meanwhile how many are not; run it before TWO_PHASE_ENABLED is set to false", save.Drain),
		{Name: "nats-users", Help: "print the users of NATS and their permissions, for nats-server: [--receiver name]... [subject of a stream of your own, to which messages may be sent]...", Run: natsUsers},
	}
}

// natsUsers prints a part of the configuration of nats-server, with variables in place of the passwords.
func natsUsers(_ context.Context, env *fn.Env, args []string) error {
	flags := flag.NewFlagSet("nats-users", flag.ContinueOnError)
	var receivers []string
	flags.Func("receiver", "name (letters, digits, _ and -) of a service that receives messages", func(name string) error {
		receivers = append(receivers, name)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, subject := range flags.Args() {
		if err := bus.CheckSubject(subject); err != nil {
			return err
		}
	}
	users := bus.Users(env.Config.TwoPhase.Stream, flags.Args()...)
	if err := bus.CheckReceivers(users, receivers); err != nil {
		return err
	}
	receiverConfigs := ""
	for _, name := range receivers {
		receiverConfigs += bus.ReceiverConfig(name)
	}
	fmt.Print(bus.ServerFile(users, receiverConfigs))
	return nil
}

// migrateConfig has the settings of the command migrate.
type migrateConfig struct {
	OwnerURL        string `envconfig:"SENDONCE_OWNER_URL" secret:"true" desc:"Postgres as the user that owns the tables and may create roles, as postgres://owner:password@host:5432/name, not through a pooler; unset = DATABASE_URL"`
	TriggerUser     string `envconfig:"SENDONCE_TRIGGER_USER" desc:"name of the caller that the trigger uses to call the functions; if SENDONCE_TRIGGER_PASSWORD is set, too, migrate creates this caller with the role trigger, or changes its password; empty = the trigger calls as the built-in admin"`
	TriggerPassword string `envconfig:"SENDONCE_TRIGGER_PASSWORD" secret:"true" desc:"password of the caller SENDONCE_TRIGGER_USER; migrate requires at least 24 characters, which must be random"`
}

// Validate checks that TriggerUser is a valid name of a caller.
func (c *migrateConfig) Validate() []task.Field {
	if c.TriggerUser != "" && !task.ValidUser(c.TriggerUser) {
		return []task.Field{{Name: "SENDONCE_TRIGGER_USER", Message: task.UserRule}}
	}
	return nil
}

func migrate(ctx context.Context, env *fn.Env, cfg migrateConfig) error {
	owner := cmp.Or(cfg.OwnerURL, env.Config.DatabaseURL)
	if owner == "" {
		return fmt.Errorf("neither SENDONCE_OWNER_URL nor DATABASE_URL is set; give the URL of the user that owns the tables")
	}
	conn, err := pgx.Connect(ctx, owner)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	applied, err := migrations.Up(ctx, conn, migrations.Roles(env.Config.Roles))
	for _, name := range applied {
		fmt.Println("applied", name)
	}
	if err != nil {
		return err
	}
	if len(applied) == 0 {
		fmt.Println("the database is up to date")
	}
	if cfg.TriggerUser != "" && cfg.TriggerPassword != "" && cfg.TriggerUser != env.Config.Username {
		action, err := migrations.EnsureTriggerCaller(ctx, conn, cfg.TriggerUser, cfg.TriggerPassword)
		if err != nil {
			return err
		}
		if action != "" {
			fmt.Println(action, cfg.TriggerUser)
		}
	}
	if env.Config.Roles.Hot == "" { // the functions use the user of DATABASE_URL, not roles of their own
		return nil
	}
	revokes, err := migrations.MissingRevokes(ctx, conn)
	for _, sql := range revokes {
		fmt.Printf("every user of this database may create objects in it: let an administrator run `%s`\n", sql)
	}
	return err
}

// reencrypt re-encrypts every secret that it can decrypt, and returns an error if it cannot decrypt one.
func reencrypt(ctx context.Context, env *fn.Env, _ struct{}) error {
	if !env.HasDatabase() {
		return fmt.Errorf("DATABASE_URL is not set")
	}
	if env.Config.EncryptionKeys == "" {
		return fmt.Errorf("SENDONCE_ENCRYPTION_KEYS is not set")
	}
	result, err := env.Maintenance.Reencrypt(ctx)
	fmt.Printf("encrypted with the first key: %d of webhook_endpoints, %d of provider_tokens\n", result.Endpoints, result.Tokens)
	if err == nil && len(result.Failed) > 0 {
		err = fmt.Errorf("%d rows were not changed; add their key to SENDONCE_ENCRYPTION_KEYS again: %w", len(result.Failed), errors.Join(result.Failed...))
	}
	return err
}
