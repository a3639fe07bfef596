// Command sendonce is every function of Sendonce in one binary. FUNCTION_TARGET
// picks the one that it serves; unset, it serves all.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/functions/admin"
	"github.com/sendonce/sendonce/functions/claim"
	"github.com/sendonce/sendonce/functions/report"
	"github.com/sendonce/sendonce/functions/submit"
	"github.com/sendonce/sendonce/functions/sweep"
	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/fn"
)

// catalogue is every function, one line each.
func catalogue() []fn.Function {
	return []fn.Function{
		submit.Function,
		claim.Function,
		report.Function,
		admin.Function,
		sweep.Function,
	}
}

func main() {
	words := []fn.Word{{Name: "migrate", Help: "bring the database of DATABASE_URL to this version; makes roles and log partitions", Run: migrate}}
	os.Exit(fn.Main(context.Background(), os.Args[1:], words, catalogue()...))
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
