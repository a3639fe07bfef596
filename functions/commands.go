package functions

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/functions/save"
	"github.com/sendonce/sendonce/functions/sweep"
	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/fn"
)

// Commands returns what the binary does beside serving.
func Commands() []fn.Word {
	return []fn.Word{
		{Name: "migrate", Help: "bring the database of DATABASE_URL to this version; makes roles and log partitions", Run: migrate},
		{Name: "archive", Help: "drop old logs, move what finished long ago to the archive tables and delete other old rows now, as sweep does in time: [--before 2026-01-31] [--dry-run]", Run: sweep.Archive},
		fn.NewWord("trigger", "carry events from NATS to the functions; stays up, any number may run", trigger),
		save.Drain,
	}
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
