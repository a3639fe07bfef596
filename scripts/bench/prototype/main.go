// Command prototype is a baseline of `make bench`: a minimal server that saves messages that it
// receives over HTTP. It has no keys, callers, limits or logs. Messages that arrive during a
// commit share the next commit.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/task"
)

// Up to two commits of at most flushRows messages each run concurrently, as in the function submit.
const (
	flushers  = 2
	flushRows = 500
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "prototype:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	waiting := make(chan *message, 10*flushRows)
	for range flushers {
		go flush(ctx, db, waiting)
	}
	server := &http.Server{Handler: submit(waiting)}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	fmt.Printf("{\"address\":%q}\n", l.Addr())
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

type message struct {
	Phone   string `json:"phone_number"`
	Content string `json:"content"`

	id    task.ID
	saved chan error
}

func submit(waiting chan<- *message) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m := &message{id: task.NewID(), saved: make(chan error, 1)}
		if err := json.NewDecoder(r.Body).Decode(m); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		waiting <- m
		if err := <-m.saved; err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"task_id":%q}`, m.id)
	}
}

// insertSQL inserts the same rows that pgbench inserts one by one.
const insertSQL = `
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
select id, 0, 'default', 5, 3, 0, phone_number, content from unnest($1::uuid[], $2::text[], $3::text[]) as t (id, phone_number, content)`

func flush(ctx context.Context, db *pgxpool.Pool, waiting <-chan *message) {
	for {
		batch := []*message{<-waiting}
		for len(batch) < flushRows && len(waiting) > 0 {
			batch = append(batch, <-waiting)
		}
		ids, phones, contents := make([]task.ID, len(batch)), make([]string, len(batch)), make([]string, len(batch))
		for i, m := range batch {
			ids[i], phones[i], contents[i] = m.id, m.Phone, m.Content
		}
		_, err := db.Exec(ctx, insertSQL, ids, phones, contents)
		for _, m := range batch {
			m.saved <- err
		}
	}
}
