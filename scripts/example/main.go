// Command example is two services that share nothing but Sendonce: an order
// service, whose paid orders must be told, and a points service, which counts
// each of them once. Either may be killed at any instant, and so may Sendonce.
//
//	go run ./scripts/example order
//	go run ./scripts/example points
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

// place is where a service stands. Unset, Sendonce is the one of `make run`.
type place struct {
	sendonceURL, user, password string
	natsURL                     string
	db                          *pgxpool.Pool // the service's own
	port                        string
	log                         *slog.Logger
}

func run(ctx context.Context, args []string) error {
	services := map[string]func(context.Context, place) error{"order": runOrder, "points": runPoints}
	if len(args) != 1 || services[args[0]] == nil {
		return errors.New("say which service: order or points")
	}
	databaseURL := os.Getenv("DATABASE_URL")
	if databaseURL == "" {
		return errors.New("DATABASE_URL is not set; give the URL of a database of the service's own")
	}
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	return services[args[0]](ctx, place{
		sendonceURL: cmp.Or(os.Getenv("SENDONCE_URL"), "http://127.0.0.1:8080"),
		user:        cmp.Or(os.Getenv("SENDONCE_USER"), "admin"),
		password:    cmp.Or(os.Getenv("SENDONCE_PASSWORD"), "sendonce-local"),
		natsURL:     os.Getenv("NATS_URL"),
		db:          db,
		port:        os.Getenv("PORT"),
		log:         slog.New(slog.NewJSONHandler(os.Stderr, nil)).With("service", args[0]),
	})
}

// serve answers calls while beside runs, until ctx ends.
func (p place) serve(ctx context.Context, h http.Handler, beside func(context.Context)) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:"+p.port)
	if err != nil {
		return err
	}
	p.log.Info("listening", "address", l.Addr().String())

	ctx, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	work.Go(func() { beside(ctx) })

	server := &http.Server{Handler: h, ReadTimeout: callLimit, WriteTimeout: callLimit}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainLimit)
	defer cancel()
	return server.Shutdown(limit)
}
