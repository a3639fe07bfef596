// Command river measures the job queue River in the same Postgres, for `make bench`. It has its own
// module, so that Sendonce does not depend on River. It migrates the database at DATABASE_URL, prints
// its address, and makes one measurement for each request to /insert, /insert-many or /work.
package main

import (
	"cmp"
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
	inserters     = 32 // goroutines, each with a connection
	manyInserters = 4
	manyRows      = 500
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

// peer measures River. It makes one measurement at a time.
type peer struct {
	driver  *riverpgxv5.Driver
	client  *river.Client[pgx.Tx] // inserts only; work creates its own
	waiting int64                 // jobs that are inserted and not worked
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
	config.MaxConns = inserters + 4 // for the notifier, the leader and the completer
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	p := &peer{driver: riverpgxv5.New(pool)}
	migrator, err := rivermigrate.New(p.driver, &rivermigrate.Config{Logger: logger})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if p.client, err = river.NewClient(p.driver, &river.Config{Logger: logger}); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/insert", p.serve(p.insert))
	mux.HandleFunc("/insert-many", p.serve(p.insertMany))
	mux.HandleFunc("/work", p.serve(p.work))
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
func (p *peer) serve(measure func(context.Context, time.Duration) (int64, time.Duration, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(cmp.Or(r.URL.Query().Get("for"), "0s"))
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

func (p *peer) insert(ctx context.Context, d time.Duration) (int64, time.Duration, error) {
	return p.repeat(d, inserters, func() (int, error) {
		_, err := p.client.Insert(ctx, newSMS(), nil)
		return 1, err
	})
}

func (p *peer) insertMany(ctx context.Context, d time.Duration) (int64, time.Duration, error) {
	return p.repeat(d, manyInserters, func() (int, error) {
		batch := make([]river.InsertManyParams, manyRows)
		for i := range batch {
			batch[i].Args = newSMS()
		}
		return p.client.InsertManyFast(ctx, batch)
	})
}

var number atomic.Int64

func newSMS() sms {
	return sms{PhoneNumber: fmt.Sprint(13_000_000_000 + number.Add(1)), Content: "Your verification code is 285713"}
}

// repeat calls insert from n goroutines for d.
func (p *peer) repeat(d time.Duration, n int, insert func() (rows int, err error)) (int64, time.Duration, error) {
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
	p.waiting += rows.Load()
	if err := failed.Load(); err != nil {
		return 0, 0, *err
	}
	return rows.Load(), took, nil
}

// work works all waiting jobs. It counts a job after its completion has been committed. The settings are
// those of River's own benchmark, which are faster than the defaults.
func (p *peer) work(ctx context.Context, _ time.Duration) (rows int64, took time.Duration, err error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{})
	client, err := river.NewClient(p.driver, &river.Config{
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
		Logger: logger, Workers: workers,
	})
	if err != nil {
		return 0, 0, err
	}
	completed, unsubscribe := client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: int(p.waiting) + 1, Kinds: []river.EventKind{river.EventKindJobCompleted},
	})
	defer unsubscribe()
	startedAt := time.Now()
	if err := client.Start(ctx); err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, client.Stop(ctx)) }()
	limit := time.After(workTimeout)
	for ; rows < p.waiting; rows++ {
		select {
		case <-completed:
		case <-limit:
			return 0, 0, fmt.Errorf("%d of %d jobs were worked within %v", rows, p.waiting, workTimeout)
		}
	}
	took = time.Since(startedAt)
	p.waiting = 0
	return rows, took, nil
}
