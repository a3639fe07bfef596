package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/outbox"
)

const ordersDDL = `CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, customer text NOT NULL, amount bigint NOT NULL)`

const (
	maxOrder  = 4 << 10 // bytes of the request's body
	maxAmount = 1_000_000
)

// order is an order that a customer has paid.
type order struct {
	ID     string `json:"id"`
	User   string `json:"user"`
	Amount int64  `json:"amount"`
}

func (o order) check() error {
	name := regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	if !name.MatchString(o.ID) || !name.MatchString(o.User) {
		return errors.New("id and user must be 1 to 64 characters of A-Z a-z 0-9 _ -")
	}
	if o.Amount < 1 || o.Amount > maxAmount {
		return fmt.Errorf("amount must be from 1 to %d", maxAmount)
	}
	return nil
}

// orderPaid is the data of the message about a paid order.
type orderPaid struct {
	Order  string `json:"order"`
	User   string `json:"user"`
	Points int64  `json:"points"`
}

func runOrder(ctx context.Context, b backend) error {
	if _, err := b.db.Exec(ctx, outbox.DDL+ordersDDL); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	forwarder := outbox.NewForwarder(b.db, api.NewClient(b.sendonceURL, b.user, b.password), b.log)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		var o order
		decodeErr := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder)).Decode(&o)
		if err := cmp.Or(decodeErr, o.check()); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		messageID, err := b.storeOrder(r.Context(), o)
		if err != nil {
			b.log.ErrorContext(r.Context(), "storing an order failed", "order", o.ID, "error", err)
			http.Error(w, "it is unknown whether the order was stored; repeat the call", http.StatusInternalServerError)
			return
		}
		forwarder.Wake()
		fmt.Fprintln(w, strings.TrimSpace("stored "+o.ID+" "+messageID))
	})
	return b.serve(ctx, mux, forwarder.Run)
}

// storeOrder stores the order and its message in one transaction, and returns the client_msg_id of the message. If the
// order exists already, storeOrder changes nothing and returns "".
func (b backend) storeOrder(ctx context.Context, o order) (messageID string, err error) {
	err = pgx.BeginFunc(ctx, b.db, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", o.ID, o.User, o.Amount)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		messageID, err = outbox.Put(ctx, tx, outbox.Message{
			ExchangeName: "orders", RoutingKey: "paid", Type: "order.paid.v1",
			Data: orderPaid{Order: o.ID, User: o.User, Points: o.Amount},
		})
		return err
	})
	return messageID, err
}
