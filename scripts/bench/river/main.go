// Command river measures the job queue River for `make bench`, in the same Postgres as Sendonce. The
// command is a module of its own, so that Sendonce does not depend on River. It migrates the database at
// DATABASE_URL, prints the address at which it listens, and makes one measurement for each request to
// /insert, /insert-many or /work.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	inserters     = 32  // goroutines of /insert, each with a connection
	manyInserters = 4   // goroutines of /insert-many
	manyRows      = 500 // jobs in one COPY of /insert-many
	workTimeout   = time.Minute
)

// sms has the fields of the submissions of the benchmark.
type sms struct {
	PhoneNumber string `json:"phone_number"`
	Content     string `json:"content"`
}

func (sms) Kind() string { return "sms" }

type worker struct{ river.WorkerDefaults[sms] }

func (*worker) Work(context.Context, *river.Job[sms]) error { return nil }

// measurer measures River. It is not for concurrent use: one measurement must end before the next begins.
type measurer struct {
	driver  *riverpgxv5.Driver
	client  *river.Client[pgx.Tx] // inserts only; work creates its own
	waiting int64                 // number of jobs that are inserted and not yet worked
}

func main() {
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer release()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	config.MaxConns = inserters + 4 // 4 for River's notifier, leader and completer
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	m := &measurer{driver: riverpgxv5.New(pool)}
	migrator, err := rivermigrate.New(m.driver, &rivermigrate.Config{Logger: logger})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if m.client, err = river.NewClient(m.driver, &river.Config{Logger: logger}); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/insert", m.serve(m.insert))
	mux.HandleFunc("/insert-many", m.serve(m.insertMany))
	mux.HandleFunc("/work", m.serve(m.work))
	server := &http.Server{Handler: mux}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Printf("{\"address\":%q}\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

var logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

// serve returns a handler that makes a measurement and responds with the rows and the seconds. The query
// parameter "for" is how long to measure.
func (m *measurer) serve(measure func(context.Context, time.Duration) (int64, time.Duration, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(r.URL.Query().Get("for"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		rows, took, err := measure(r.Context(), d)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"rows": rows, "seconds": took.Seconds()})
	}
}

func (m *measurer) insert(ctx context.Context, d time.Duration) (int64, time.Duration, error) {
	return m.repeat(d, inserters, func() (int, error) {
		_, err := m.client.Insert(ctx, newSMS(), nil)
		return 1, err
	})
}

func (m *measurer) insertMany(ctx context.Context, d time.Duration) (int64, time.Duration, error) {
	return m.repeat(d, manyInserters, func() (int, error) {
		batch := make([]river.InsertManyParams, manyRows)
		for i := range batch {
			batch[i].Args = newSMS()
		}
		return m.client.InsertManyFast(ctx, batch)
	})
}

var number atomic.Int64

func newSMS() sms {
	return sms{PhoneNumber: fmt.Sprint(13_000_000_000 + number.Add(1)), Content: "Your verification code is 285713"}
}

// repeat calls insert from n goroutines for d.
func (m *measurer) repeat(d time.Duration, n int, insert func() (rows int, err error)) (int64, time.Duration, error) {
	var rows atomic.Int64
	var failed atomic.Pointer[error]
	var inserts sync.WaitGroup
	startedAt := time.Now()
	for range n {
		inserts.Go(func() {
			for time.Since(startedAt) < d && failed.Load() == nil {
				inserted, err := insert()
				if err != nil {
					failed.Store(&err)
					return
				}
				rows.Add(int64(inserted))
			}
		})
	}
	inserts.Wait()
	took := time.Since(startedAt)
	m.waiting += rows.Load()
	if err := failed.Load(); err != nil {
		return 0, 0, *err
	}
	return rows.Load(), took, nil
}

// work works all waiting jobs. It counts a job after its completion has been committed. The settings are
// those of River's own benchmark, which are faster than the defaults.
func (m *measurer) work(ctx context.Context, _ time.Duration) (rows int64, took time.Duration, err error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{})
	client, err := river.NewClient(m.driver, &river.Config{
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
		Logger: logger, Workers: workers,
	})
	if err != nil {
		return 0, 0, err
	}
	completed, unsubscribe := client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: int(m.waiting) + 1, Kinds: []river.EventKind{river.EventKindJobCompleted},
	})
	defer unsubscribe()
	startedAt := time.Now()
	if err := client.Start(ctx); err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, client.Stop(ctx)) }()
	timeout := time.After(workTimeout)
	for ; rows < m.waiting; rows++ {
		select {
		case <-completed:
		case <-timeout:
			return 0, 0, fmt.Errorf("%d of %d jobs were worked within %v", rows, m.waiting, workTimeout)
		}
	}
	took = time.Since(startedAt)
	m.waiting = 0
	return rows, took, nil
}
