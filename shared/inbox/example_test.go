package inbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/inbox"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// A points service credits an order's points once, however often the message arrives.
func Example() {
	ctx := context.Background()
	db, end := database(ctx, inbox.DDL, "CREATE TABLE points (account text PRIMARY KEY, balance int NOT NULL)")
	defer end()
	sendonce := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("confirmed:", r.URL.Path)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer sendonce.Close()

	confirmer := &inbox.Confirmer{BaseURL: sendonce.URL, User: "points", Password: "token", Consumer: "points"}
	receiver := &inbox.Receiver{
		DB: db, Consumer: "points", Confirm: confirmer.Confirm,
		Effect: func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			var order struct {
				Account string `json:"account"`
				Points  int    `json:"points"`
			}
			if err := json.Unmarshal(m.Data, &order); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO points VALUES ($1, $2)
				ON CONFLICT (account) DO UPDATE SET balance = points.balance + $2`, order.Account, order.Points)
			return err
		},
	}
	for range 2 { // the service would be: http.Handle("POST /messages", authenticated(receiver))
		req := httptest.NewRequest(http.MethodPost, "/messages", strings.NewReader(`{"account": "anna", "points": 10}`))
		req.Header.Set("ce-id", "0b8e7a52-6f0c-5d0e-9a53-0d7c1c3f2a11")
		receiver.ServeHTTP(httptest.NewRecorder(), req)
	}

	var balance int
	if err := db.QueryRow(ctx, "SELECT balance FROM points WHERE account = 'anna'").Scan(&balance); err != nil {
		panic(err)
	}
	fmt.Println("anna has", balance)
	// Output:
	// confirmed: /api/v1/messages/0b8e7a52-6f0c-5d0e-9a53-0d7c1c3f2a11/received
	// confirmed: /api/v1/messages/0b8e7a52-6f0c-5d0e-9a53-0d7c1c3f2a11/received
	// anna has 10
}

// database starts a Postgres for an example. Its tables are temporary, so they exist
// for its only connection.
func database(ctx context.Context, ddl ...string) (db *pgxpool.Pool, end func()) {
	server, err := sandbox.StartPostgres(ctx, sandbox.Options{})
	if err != nil {
		panic(err)
	}
	cfg, err := pgxpool.ParseConfig(server.URL("postgres"))
	if err != nil {
		panic(err)
	}
	cfg.MaxConns = 1
	cfg.ConnConfig.RuntimeParams["search_path"] = "pg_temp"
	db, err = pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		panic(err)
	}
	for _, sql := range ddl {
		if _, err := db.Exec(ctx, sql); err != nil {
			panic(err)
		}
	}
	return db, func() {
		db.Close()
		if err := server.Stop(); err != nil {
			panic(err)
		}
	}
}
