package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	demoOrders = 5
	demoUser   = "anna"
	demoLimit  = 30 * time.Second // for an order to give its points
	demoLook   = 20 * time.Millisecond

	mayNotCreate = "42501"
	existsNow    = "42P04"
)

var errNoRun = errors.New("start make run first, in another terminal")

// demo runs both services beside the `make run` of home, each in a database of
// its own on that Postgres, until ctx ends.
func demo(ctx context.Context, home string, out io.Writer) error {
	beside, err := readRun(ctx, home)
	if err != nil {
		return err
	}
	if err := makeDatabases(ctx, beside["DATABASE_URL"], "orders", "points"); err != nil {
		return err
	}
	if beside["NATS_DOMAIN"] != "" {
		if err := grantPoints(ctx, beside["NATS_URL"]); err != nil {
			return err
		}
	}
	admin := operator{beside["SENDONCE_URL"], beside["SENDONCE_USER"], beside["SENDONCE_PASSWORD"]}
	token, err := admin.receiver(ctx, consumerName, paidSubject)
	if err != nil {
		return err
	}
	running, ctx := errgroup.WithContext(ctx)
	start := func(name, port, user, password string, service func(context.Context, place) error) (url string, db *pgxpool.Pool, err error) {
		if db, err = openDatabase(ctx, beside["DATABASE_URL"], name); err != nil {
			return "", nil, err
		}
		l, err := listen(ctx, port)
		if err != nil {
			l, err = listen(ctx, "0") // somebody has that port
		}
		if err != nil {
			db.Close()
			return "", nil, err
		}
		running.Go(func() error {
			defer db.Close()
			return service(ctx, place{
				sendonceURL: admin.url, user: user, password: password,
				natsURL: cmp.Or(beside["NATS_POINTS_URL"], beside["NATS_URL"]), natsDomain: beside["NATS_DOMAIN"], db: db, listener: l,
				log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("service", name),
			})
		})
		return "http://" + l.Addr().String(), db, nil
	}
	running.Go(func() error {
		shop, _, err := start("orders", orderPort, admin.user, admin.password, runOrder)
		if err != nil {
			return err
		}
		points, credited, err := start("points", pointsPort, consumerName, token, runPoints)
		if err != nil {
			return err
		}
		t := tour{shop, points, credited, api.NewClient(admin.url, admin.user, admin.password), out}
		if err := t.run(ctx); ctx.Err() == nil {
			return err
		}
		return nil
	})
	return running.Wait()
}

// grantPoints is what an operator does for a receiver: it makes its consumer.
func grantPoints(ctx context.Context, operatorURL string) error {
	nc, err := nats.Connect(operatorURL)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	for {
		_, err = makeConsumer(ctx, js)
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		select {
		case <-time.After(pause): // the trigger makes the streams a moment after it has started
		case <-ctx.Done():
			return err
		}
	}
}

// readRun gives what a `make run` that is ready says of itself in its home.
func readRun(ctx context.Context, home string) (map[string]string, error) {
	file := filepath.Join(home, "run.env")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w (there is no %s)", errNoRun, file)
	}
	if err != nil {
		return nil, err
	}
	said := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		said[name] = value
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, said["SENDONCE_URL"]+"/readyz", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w (the one of %s has ended: %w)", errNoRun, file, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the Sendonce of %s is not ready: %s", file, res.Status)
	}
	return said, nil
}

// makeDatabases makes those that are missing on the server of databaseURL.
func makeDatabases(ctx context.Context, databaseURL string, names ...string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, name := range names {
		var exists bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil {
			return fmt.Errorf("look for database %s: %w", name, err)
		}
		if exists {
			continue
		}
		_, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
		var refused *pgconn.PgError
		switch {
		case errors.As(err, &refused) && refused.Code == existsNow:
		case errors.As(err, &refused) && refused.Code == mayNotCreate:
			return fmt.Errorf("the user %[1]s of DATABASE_URL may not create databases: have CREATE DATABASE %[2]s OWNER %[1]s run for each of %[3]s",
				conn.Config().User, name, strings.Join(names, ", "))
		case err != nil:
			return fmt.Errorf("create database %s: %w", name, err)
		}
	}
	return nil
}

func openDatabase(ctx context.Context, databaseURL, name string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.Database = name
	return pgxpool.NewWithConfig(ctx, cfg)
}

// tour pays orders and tells what becomes of each, as anybody could find out.
type tour struct {
	shop, points string        // URLs
	credited     *pgxpool.Pool // the points service's
	sendonce     *api.Client
	out          io.Writer
}

func (t tour) run(ctx context.Context) error {
	paidAt := time.Now().Unix() // orders of earlier tours are not paid again
	for n := range demoOrders {
		o := order{ID: fmt.Sprintf("demo-%d-%d", paidAt, n+1), User: demoUser, Amount: int64(10 * (n + 1))}
		if err := t.follow(ctx, o); err != nil {
			return fmt.Errorf("order %s: %w", o.ID, err)
		}
	}
	sum, err := t.ask(ctx, http.MethodGet, t.points+"/points/"+demoUser, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, `%[1]s has %[2]s points

pay more, the same order twice too, and look:
  curl -d '{"id": "order-1", "user": "%[1]s", "amount": 10}' %[3]s/orders
  curl %[4]s/points/%[1]s

ready; Ctrl-C ends it
`, demoUser, sum, t.shop, t.points)
	return nil
}

// follow pays an order and sees it through.
func (t tour) follow(ctx context.Context, o order) error {
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	answer, err := t.ask(ctx, http.MethodPost, t.shop+"/orders", strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	key := answer[strings.LastIndex(answer, " ")+1:]
	fmt.Fprintf(t.out, "order paid            %s: %d by %s, stored with its message in one transaction\n", o.ID, o.Amount, o.User)

	var m api.MessageResponse
	handedOver := func() (bool, error) {
		var missing *api.Error
		if m, err = t.sendonce.MessageByKey(ctx, key, ""); errors.As(err, &missing) && missing.Code == "not_found" {
			return false, nil
		}
		return true, err
	}
	if err := until(ctx, "handed over", handedOver); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "message handed over   %s\n", m.ServerMsgID)

	pointsGiven := func() (given bool, err error) {
		err = t.credited.QueryRow(ctx, "SELECT EXISTS (SELECT FROM message_inbox WHERE consumer = $1 AND message_id = $2)", consumerName, m.ServerMsgID).Scan(&given)
		return given, err
	}
	if err := until(ctx, "given points for", pointsGiven); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "points given          %d to %s, with the message's id in one transaction\n", o.Amount, o.User)

	received := func() (bool, error) {
		m, err = t.sendonce.Message(ctx, m.ServerMsgID)
		return m.State == "received", err
	}
	if err := until(ctx, "received", received); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "message received      %s is sent no more\n", m.ServerMsgID)
	return nil
}

// until waits until it has come to what is asked for.
func until(ctx context.Context, what string, come func() (bool, error)) error {
	for {
		if ok, err := come(); err != nil {
			return fmt.Errorf("see whether it was %s: %w", what, err)
		} else if ok {
			return nil
		}
		select {
		case <-time.After(demoLook):
		case <-ctx.Done():
			return fmt.Errorf("not %s: %w", what, ctx.Err())
		}
	}
}

// ask gives what a service answers.
func (t tour) ask(ctx context.Context, method, url string, body io.Reader) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s answered %s: %s", method, url, res.Status, text)
	}
	return strings.TrimSpace(string(text)), err
}
