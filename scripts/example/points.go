package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/inbox"
)

const pointsDDL = `CREATE TABLE IF NOT EXISTS points (customer text PRIMARY KEY, total bigint NOT NULL)`

const (
	consumerName = "points"
	paidSubject  = "msg.orders.paid"
	batchSize    = 16
	ackWait      = 30 * time.Second // longer than a transaction and the longest Confirm together
	pause        = time.Second      // before a message is delivered again, and before a retry after an error of NATS; also the longest wait of a fetch
)

func runPoints(ctx context.Context, b backend) error {
	if b.natsURL == "" {
		return errors.New("NATS_URL is not set; `make run` prints it")
	}
	if _, err := b.db.Exec(ctx, inbox.DDL+pointsDDL); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	nc, err := nats.Connect(b.natsURL, nats.Name(consumerName), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if b.natsDomain != "" {
		js, err = jetstream.NewWithDomain(nc, b.natsDomain)
	}
	if err != nil {
		return err
	}
	confirmer := &inbox.Confirmer{BaseURL: b.sendonceURL, User: b.user, Password: b.password, Consumer: consumerName}
	c := pointsConsumer{backend: b, js: js, receiver: &inbox.Receiver{
		DB: b.db, Consumer: consumerName, Effect: credit, Confirm: confirmer.Confirm, Log: b.log,
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /points/{user}", c.showPoints)
	return b.serve(ctx, mux, c.run)
}

// credit is the effect of a message: it adds the points of the order.
func credit(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	var order orderPaid
	if err := json.Unmarshal(m.Data, &order); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO points VALUES ($1, $2)
		ON CONFLICT (customer) DO UPDATE SET total = points.total + $2`, order.User, order.Points)
	return err
}

// pointsConsumer receives messages from NATS.
type pointsConsumer struct {
	backend
	js       jetstream.JetStream
	receiver *inbox.Receiver
}

// run consumes until ctx ends. After an error of NATS it starts again.
func (c pointsConsumer) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.consume(ctx)
		if ctx.Err() != nil {
			return
		}
		c.log.WarnContext(ctx, "not consuming", "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// createConsumer creates the consumer of the points service. The consumer delivers only messages with paidSubject.
func createConsumer(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	return js.CreateOrUpdateConsumer(ctx, "MESSAGES", jetstream.ConsumerConfig{
		Durable: consumerName, FilterSubject: paidSubject,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
		// 25 messages of 64 KiB, the maximum size, fit into max_pending of the server (4 MiB): if more is waiting, the
		// server closes the connection.
		MaxAckPending: 25,
		// NATS delivers a message at most 10 times, so that a message that always fails does not delay others
		// permanently. Sendonce sends the message again later, and lists it as stuck after the last send.
		MaxDeliver: 10,
	})
}

func (c pointsConsumer) consume(ctx context.Context) error {
	var consumer jetstream.Consumer
	var err error
	if c.natsDomain == "" {
		consumer, err = createConsumer(ctx, c.js)
	} else {
		consumer, err = c.js.Consumer(ctx, "MESSAGES", consumerName)
	}
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		batch, err := consumer.Fetch(batchSize, jetstream.FetchMaxWait(pause))
		if err != nil {
			return err
		}
		var handling sync.WaitGroup
		for msg := range batch.Messages() {
			handling.Go(func() { c.handle(ctx, msg) })
		}
		handling.Wait()
		if err := batch.Error(); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// handle gives the points of a message, confirms the message to Sendonce, and then acknowledges it
// to NATS. If one of these steps fails, NATS or Sendonce delivers the message again.
func (c pointsConsumer) handle(ctx context.Context, msg jetstream.Msg) {
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	h := msg.Headers()
	m := inbox.Message{ID: h.Get("ce-id"), Source: h.Get("ce-source"), Type: h.Get("ce-type"), Data: msg.Data()}
	_, err := c.receiver.Receive(ctx, m)
	if err == nil {
		err = msg.DoubleAck(ctx)
	} else {
		err = errors.Join(err, msg.NakWithDelay(pause))
	}
	if err != nil {
		c.log.WarnContext(ctx, "message will be delivered again", "id", m.ID, "error", err)
	}
}

// showPoints responds with the points of a user; an unknown user has 0.
func (c pointsConsumer) showPoints(w http.ResponseWriter, r *http.Request) {
	var total int64
	err := c.db.QueryRow(r.Context(), "SELECT coalesce(sum(total), 0)::bigint FROM points WHERE customer = $1", r.PathValue("user")).Scan(&total)
	if err != nil {
		c.log.ErrorContext(r.Context(), "points not read", "error", err)
		http.Error(w, "the points cannot be read; try again", http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, total)
}
