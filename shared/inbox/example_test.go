package inbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/inbox"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// A points service credits an order's points once, however often the message arrives.
func Example() {
	ctx := context.Background()
	db, end := sandbox.ExampleDatabase(ctx, inbox.DDL, "CREATE TABLE points (account text PRIMARY KEY, balance int NOT NULL)")
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
