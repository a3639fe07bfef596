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
	demoOrders   = 5
	demoUser     = "anna"
	demoTimeout  = 30 * time.Second // for all steps of one order, or of the booking
	demoInterval = 20 * time.Millisecond

	insufficientPrivilege = "42501"
	duplicateDatabase     = "42P04"
)

var errNoRun = errors.New("start make run first, in another terminal")

// demo runs both services until ctx ends, each with its own database, on the Postgres and NATS of the `make run` that
// keeps its data in home. It pays a few orders and prints the progress of each.
func demo(ctx context.Context, home string, out io.Writer) error {
	run, err := readRun(ctx, home)
	if err != nil {
		return err
	}
	if err := createDatabases(ctx, run["DATABASE_URL"], "orders", "points"); err != nil {
		return err
	}
	if run["NATS_DOMAIN"] != "" {
		if err := createPointsConsumer(ctx, run["NATS_URL"]); err != nil {
			return err
		}
	}
	admin := callersClient{run["SENDONCE_URL"], run["SENDONCE_USER"], run["SENDONCE_PASSWORD"]}
	token, err := admin.createReceiver(ctx, consumerName, paidSubject)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	start := func(name, port, user, password string, service func(context.Context, backend) error) (url string, db *pgxpool.Pool, err error) {
		if db, err = openDatabase(ctx, run["DATABASE_URL"], name); err != nil {
			return "", nil, err
		}
		l, err := listen(ctx, port)
		if err != nil {
			l, err = listen(ctx, "0") // the port is in use
		}
		if err != nil {
			db.Close()
			return "", nil, err
		}
		group.Go(func() error {
			defer db.Close()
			return service(ctx, backend{
				sendonceURL: admin.url, user: user, password: password,
				natsURL: cmp.Or(run["NATS_POINTS_URL"], run["NATS_URL"]), natsDomain: run["NATS_DOMAIN"], db: db, listener: l,
				log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("service", name),
			})
		})
		return "http://" + l.Addr().String(), db, nil
	}
	group.Go(func() error {
		shop, _, err := start("orders", orderPort, admin.user, admin.password, runOrder)
		if err != nil {
			return err
		}
		points, pointsDB, err := start("points", pointsPort, consumerName, token, runPoints)
		if err != nil {
			return err
		}
		t := walkthrough{shop, points, pointsDB, api.NewClient(admin.url, admin.user, admin.password), out}
		if err := t.run(ctx); ctx.Err() == nil {
			return err
		}
		return nil
	})
	return group.Wait()
}

// createPointsConsumer creates the consumer of the points service as NATS's user operator, because the NATS user of the
// service has no permission for that.
func createPointsConsumer(ctx context.Context, operatorURL string) error {
	nc, err := nats.Connect(operatorURL)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for {
		_, err = createConsumer(ctx, js)
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		select {
		case <-time.After(pause): // the trigger creates the streams shortly after its start
		case <-ctx.Done():
			return err
		}
	}
}

// readRun returns the settings in home/run.env, the file that `make run` writes. If this `make run` is not ready, readRun
// returns an error.
func readRun(ctx context.Context, home string) (map[string]string, error) {
	file := filepath.Join(home, "run.env")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w (there is no %s)", errNoRun, file)
	}
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		settings[name] = value
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, settings["SENDONCE_URL"]+"/readyz", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w (the run of %s has ended: %w)", errNoRun, file, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the Sendonce of %s is not ready: %s", file, res.Status)
	}
	return settings, nil
}

// createDatabases creates the databases that are missing on the server of databaseURL.
func createDatabases(ctx context.Context, databaseURL string, names ...string) error {
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
		case errors.As(err, &refused) && refused.Code == duplicateDatabase:
		case errors.As(err, &refused) && refused.Code == insufficientPrivilege:
			return fmt.Errorf("the user %[1]s of DATABASE_URL may not create databases: let an administrator run CREATE DATABASE %[2]s OWNER %[1]s, for each of %[3]s",
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

// walkthrough pays orders and prints the progress of each.
type walkthrough struct {
	shop, points string        // URLs
	pointsDB     *pgxpool.Pool // of the points service
	sendonce     *api.Client
	out          io.Writer
}

func (t walkthrough) run(ctx context.Context) error {
	paidAt := time.Now().Unix() // as a part of the ids, it makes them differ from those of earlier runs
	for n := range demoOrders {
		o := order{ID: fmt.Sprintf("demo-%d-%d", paidAt, n+1), User: demoUser, Amount: int64(10 * (n + 1))}
		if err := t.payAndFollow(ctx, o); err != nil {
			return fmt.Errorf("order %s: %w", o.ID, err)
		}
	}
	sum, err := t.call(ctx, http.MethodGet, t.points+"/points/"+demoUser, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, `%[1]s has %[2]s points

pay more orders, also the same one twice, and read the points:
  curl -d '{"id": "order-1", "user": "%[1]s", "amount": 10}' %[3]s/orders
  curl %[4]s/points/%[1]s

ready; Ctrl-C ends it
`, demoUser, sum, t.shop, t.points)
	return nil
}

// payAndFollow pays an order, and waits for each step of its message and prints it.
func (t walkthrough) payAndFollow(ctx context.Context, o order) error {
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	response, err := t.call(ctx, http.MethodPost, t.shop+"/orders", strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	key := response[strings.LastIndex(response, " ")+1:] // the client_msg_id of the message
	fmt.Fprintf(t.out, "order paid            %s: %d by %s, stored with its message in one transaction\n", o.ID, o.Amount, o.User)

	var m api.MessageResponse
	isSubmitted := func() (bool, error) {
		var missing *api.Error
		if m, err = t.sendonce.MessageByKey(ctx, key, ""); errors.As(err, &missing) && missing.Code == "not_found" {
			return false, nil
		}
		return true, err
	}
	if err := waitFor(ctx, "submitted", isSubmitted); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "message submitted     %s\n", m.ServerMsgID)

	isCredited := func() (exists bool, err error) {
		err = t.pointsDB.QueryRow(ctx, "SELECT EXISTS (SELECT FROM message_inbox WHERE consumer = $1 AND message_id = $2)", consumerName, m.ServerMsgID).Scan(&exists)
		return exists, err
	}
	if err := waitFor(ctx, "credited", isCredited); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "points given          %d to %s, with the message's id in one transaction\n", o.Amount, o.User)

	isReceived := func() (bool, error) {
		m, err = t.sendonce.Message(ctx, m.ServerMsgID)
		return m.State == "received", err
	}
	if err := waitFor(ctx, "received", isReceived); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "message received      %s is not sent again\n", m.ServerMsgID)
	return nil
}

// waitFor calls reached until it returns true, which means that the message or order is in the state. state is only used
// in errors.
func waitFor(ctx context.Context, state string, reached func() (bool, error)) error {
	for {
		if ok, err := reached(); err != nil {
			return fmt.Errorf("check whether it was %s: %w", state, err)
		} else if ok {
			return nil
		}
		select {
		case <-time.After(demoInterval):
		case <-ctx.Done():
			return fmt.Errorf("not %s: %w", state, ctx.Err())
		}
	}
}

// call makes a call and returns the body of the response.
func (t walkthrough) call(ctx context.Context, method, url string, body io.Reader) (string, error) {
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
		err = fmt.Errorf("%s %s returned %s: %s", method, url, res.Status, text)
	}
	return strings.TrimSpace(string(text)), err
}
