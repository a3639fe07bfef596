// Command example is two services that share nothing but Sendonce: an order
// service, whose paid orders must be told, and a points service, which counts
// each of them once. Either may be killed at any instant, and so may Sendonce.
//
//	go run ./scripts/example order
//	go run ./scripts/example points
//
// With demo it is both at once, beside `make run`, whose Postgres and NATS they
// use; it pays a few orders and tells what becomes of them. With booking it has
// WeChat confirm a booking to a user, beside `make run` too, and ends.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	callLimit  = 10 * time.Second
	drainLimit = 10 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

// place is where a service stands. Unset, Sendonce is the one of `make run`.
type place struct {
	sendonceURL, user, password string
	natsURL, natsDomain         string        // a domain says that the consumer is made by an operator
	db                          *pgxpool.Pool // the service's own
	listener                    net.Listener  // serve closes it
	log                         *slog.Logger
}

// The ports that the services have unless they are told another one.
const (
	orderPort  = "8081"
	pointsPort = "8082"
)

func run(ctx context.Context, args []string, out io.Writer) error {
	word := ""
	if len(args) == 1 {
		word = args[0]
	}
	home := cmp.Or(os.Getenv("SENDONCE_HOME"), ".sendonce")
	switch word {
	case "order":
		return alone(ctx, word, orderPort, runOrder)
	case "points":
		return alone(ctx, word, pointsPort, runPoints)
	case "demo":
		return demo(ctx, home, out)
	case "booking":
		return booking(ctx, home, out)
	}
	return errors.New("say which service: order or points, demo for both, or booking")
}

// alone runs one service as the environment says.
func alone(ctx context.Context, name, port string, service func(context.Context, place) error) error {
	databaseURL := os.Getenv("DATABASE_URL")
	if databaseURL == "" {
		return errors.New("DATABASE_URL is not set; give the URL of a database of the service's own")
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
	return service(ctx, place{
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

func listen(ctx context.Context, port string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:"+port)
}

// serve answers calls while beside runs, until ctx ends.
func (p place) serve(ctx context.Context, h http.Handler, beside func(context.Context)) error {
	p.log.Info("listening", "address", p.listener.Addr().String())

	ctx, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	work.Go(func() { beside(ctx) })

	server := &http.Server{Handler: h, ReadTimeout: callLimit, WriteTimeout: callLimit}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(p.listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainLimit)
	defer cancel()
	return server.Shutdown(limit)
}
