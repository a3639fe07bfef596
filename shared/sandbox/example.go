package sandbox

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ExampleDatabase starts a Postgres for an example and executes the statements. New tables are temporary: they exist in
// the session of db, which has only one connection. ExampleDatabase panics after an error, since an example has no
// testing.T.
func ExampleDatabase(ctx context.Context, statements ...string) (db *pgxpool.Pool, end func()) {
	server, err := StartPostgres(ctx, Options{})
	if err != nil {
		panic(err)
	}
	cfg, err := pgxpool.ParseConfig(server.URL("postgres"))
	if err != nil {
		panic(err)
	}
	cfg.MaxConns = 1
	cfg.ConnConfig.RuntimeParams["search_path"] = "pg_temp"
	db, err = pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		panic(err)
	}
	for _, sql := range statements {
		if _, err := db.Exec(ctx, sql); err != nil {
			panic(err)
		}
	}
	return db, func() {
		db.Close()
		if err := server.Stop(); err != nil {
			panic(err)
		}
	}
}
