// Command example has two services that are connected only by Sendonce. The order service sends a
// message for each paid order; the points service gives points for each order once, even if a
// service or Sendonce is killed at any time.
//
//	go run ./scripts/example order
//	go run ./scripts/example points
//
// The command demo runs both with the Postgres and NATS of a running `make run`, pays a few orders and
// prints the progress of each. The command booking submits the confirmation of one booking three times
// to a running `make run`, whose fake WeChat delivers it once.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	command := ""
	if len(args) == 1 {
		command = args[0]
	}
	home := cmp.Or(os.Getenv("SENDONCE_HOME"), ".sendonce")
	switch command {
	case "order":
		return runAlone(ctx, command, orderPort, runOrder)
	case "points":
		return runAlone(ctx, command, pointsPort, runPoints)
	case "demo":
		return demo(ctx, home, out)
	case "booking":
		return booking(ctx, home, out)
	}
	return errors.New("one argument is needed: order, points, demo (both services) or booking")
}

// runAlone runs one service with the settings in the environment.
func runAlone(ctx context.Context, name, port string, service func(context.Context, backend) error) error {
	databaseURL := os.Getenv("DATABASE_URL")
	if databaseURL == "" {
		return errors.New("DATABASE_URL is not set; set it to the URL of a database that only this service uses")
	}
	password := os.Getenv("SENDONCE_PASSWORD")
	if password == "" {
		return errors.New("SENDONCE_PASSWORD is not set; that of make run is in .sendonce/secrets/basic_auth_password")
	}
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	l, err := listen(ctx, cmp.Or(os.Getenv("PORT"), port))
	if err != nil {
		return err
	}
	return service(ctx, backend{
		sendonceURL: cmp.Or(os.Getenv("SENDONCE_URL"), "http://127.0.0.1:8000"),
		user:        cmp.Or(os.Getenv("SENDONCE_USER"), "admin"),
		password:    password,
		natsURL:     os.Getenv("NATS_URL"),
		natsDomain:  os.Getenv("NATS_DOMAIN"),
		db:          db,
		listener:    l,
		log:         slog.New(slog.NewJSONHandler(os.Stderr, nil)).With("service", name),
	})
}
