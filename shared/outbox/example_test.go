package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/outbox"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// An order service sends a message for each order that it has stored, and for no other order.
func Example() {
	ctx := context.Background()
	db, end := sandbox.ExampleDatabase(ctx, outbox.DDL, "CREATE TABLE orders (id int PRIMARY KEY)")
	defer end()
	sendonce := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var message api.MessageRequest
		err := json.NewDecoder(r.Body).Decode(&message)
		fmt.Fprintf(w, `{"code":200,"data":{"client_msg_id":%q}}`, message.ClientMsgID)
		fmt.Println("received:", message.RoutingKey, err)
	}))
	defer sendonce.Close()

	forwarder := outbox.NewForwarder(db, api.NewClient(sendonce.URL, "orders", "token"), slog.Default())
	submit := func(order int) error {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			_, err := outbox.Put(ctx, tx, outbox.Message{
				ExchangeName: "shop", RoutingKey: "order.paid", Type: "order.paid", Data: map[string]int{"order": order},
			})
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", order)
			return err
		})
		forwarder.Wake() // a service has `go forwarder.Run(ctx)`, which this wakes
		return err
	}
	for _, order := range []int{7, 7} {
		if err := submit(order); err != nil {
			fmt.Println("rolled back: order", order, "exists")
		}
	}
	n, err := forwarder.Drain(ctx)
	fmt.Println("forwarded:", n, err)
	// Output:
	// rolled back: order 7 exists
	// received: order.paid <nil>
	// forwarded: 1 <nil>
}
