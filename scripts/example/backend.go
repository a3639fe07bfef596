package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	callTimeout  = 10 * time.Second
	drainTimeout = 10 * time.Second
)

// backend has the connections and settings of a service.
type backend struct {
	sendonceURL, user, password string
	natsURL                     string
	natsDomain                  string        // JetStream domain; if it is set, an operator must create the consumer
	db                          *pgxpool.Pool // used by this service only
	listener                    net.Listener  // serve closes it
	log                         *slog.Logger
}

// The ports of the services, unless PORT is set.
const (
	orderPort  = "8081"
	pointsPort = "8082"
)

func listen(ctx context.Context, port string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:"+port)
}

// serve handles calls with h and runs background, until ctx ends or the server fails.
func (b backend) serve(ctx context.Context, h http.Handler, background func(context.Context)) error {
	b.log.Info("listening", "address", b.listener.Addr().String())

	ctx, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	work.Go(func() { background(ctx) })

	server := &http.Server{Handler: h, ReadTimeout: callTimeout, WriteTimeout: callTimeout}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(b.listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	return server.Shutdown(drain)
}
