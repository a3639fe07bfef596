package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// startPostgres starts a Postgres server, unless DATABASE_URL is set. It returns the URL of the database, and a server whose
// Stop the caller must call in any case; if DATABASE_URL is set, Stop does nothing.
func startPostgres(ctx context.Context, s settings, out io.Writer) (string, *sandbox.Postgres, error) {
	if s.databaseURL != "" {
		printStep(out, "postgres", "at DATABASE_URL")
		return s.databaseURL, &sandbox.Postgres{}, nil
	}
	log, err := openLog(s.home, "postgres.log")
	if err != nil {
		return "", nil, err
	}
	postgres, err := sandbox.StartPostgres(ctx, sandbox.Options{Dir: filepath.Join(s.home, "postgres"), Durable: true, Log: log})
	if err != nil {
		return "", nil, errors.Join(err, log.Close())
	}
	databaseURL := postgres.URL("postgres")
	printStep(out, "postgres", "psql '"+databaseURL+"'")
	return databaseURL, postgres, nil
}
