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
	atOnce       = 16
	ackWait      = 30 * time.Second // more than a transaction and the longest Confirm
	pause        = time.Second
)

func runPoints(ctx context.Context, p place) error {
	if p.natsURL == "" {
		return errors.New("NATS_URL is not set; `make run` prints it")
	}
	if _, err := p.db.Exec(ctx, inbox.DDL+pointsDDL); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	nc, err := nats.Connect(p.natsURL, nats.Name(consumerName), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if p.natsDomain != "" {
		js, err = jetstream.NewWithDomain(nc, p.natsDomain)
	}
	if err != nil {
		return err
	}
	confirmer := &inbox.Confirmer{BaseURL: p.sendonceURL, User: p.user, Password: p.password, Consumer: consumerName}
	c := collector{place: p, js: js, receiver: &inbox.Receiver{
		DB: p.db, Consumer: consumerName, Effect: credit, Confirm: confirmer.Confirm, Log: p.log,
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /points/{user}", c.tell)
	return p.serve(ctx, mux, c.run)
}

// credit is what a message is for.
func credit(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	var order paid
	if err := json.Unmarshal(m.Data, &order); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO points VALUES ($1, $2)
		ON CONFLICT (customer) DO UPDATE SET total = points.total + $2`, order.User, order.Points)
	return err
}

// collector takes messages from NATS.
type collector struct {
	place
	js       jetstream.JetStream
	receiver *inbox.Receiver
}

// run collects until ctx ends, and begins anew when NATS or the stream was away.
func (c collector) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.collect(ctx)
		if ctx.Err() != nil {
			return
		}
		c.log.WarnContext(ctx, "not collecting", "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// makeConsumer makes the consumer of the service, whose filter is what it is
// granted.
func makeConsumer(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	return js.CreateOrUpdateConsumer(ctx, "MESSAGES", jetstream.ConsumerConfig{
		Durable: consumerName, FilterSubject: paidSubject,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
		// What NATS gives up here Sendonce sends again, and lists as stuck after
		// its last send: a message that can never be taken holds up no other.
		MaxDeliver: 10,
	})
}

func (c collector) collect(ctx context.Context) error {
	find := makeConsumer
	if c.natsDomain != "" {
		find = func(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
			return js.Consumer(ctx, "MESSAGES", consumerName)
		}
	}
	consumer, err := find(ctx, c.js)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		batch, err := consumer.Fetch(atOnce, jetstream.FetchMaxWait(pause))
		if err != nil {
			return err
		}
		var under sync.WaitGroup
		for msg := range batch.Messages() {
			under.Go(func() { c.take(ctx, msg) })
		}
		under.Wait()
		if err := batch.Error(); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// take acknowledges a message to NATS only when its points are committed and
// Sendonce knows it. Until then one of both brings it again.
func (c collector) take(ctx context.Context, msg jetstream.Msg) {
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
		c.log.WarnContext(ctx, "message comes again", "id", m.ID, "error", err)
	}
}

// tell answers with a user's points; one who is not known has none.
func (c collector) tell(w http.ResponseWriter, r *http.Request) {
	var total int64
	err := c.db.QueryRow(r.Context(), "SELECT coalesce(sum(total), 0)::bigint FROM points WHERE customer = $1", r.PathValue("user")).Scan(&total)
	if err != nil {
		c.log.ErrorContext(r.Context(), "points not read", "error", err)
		http.Error(w, "not now", http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, total)
}
