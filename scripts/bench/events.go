package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	pollers  = 1000
	pollWait = 25                    // seconds; less than callTimeout
	apart    = 30 * time.Millisecond // between single samples: what is told within 20 ms is told together

	savers       = 64
	settleLimit  = 2 * time.Minute
	settledEvery = 500 * time.Microsecond
)

// eventsText says what the rows of measureEvents are.
const eventsText = `Waiting claims, messages and the relay: every function is a process of its own, and NATS runs in the load generator.
A claim is woken from before the submission, in another process, to its answer; one of many polls that wait. A message is on its
way from the answer that it is saved until the relay has settled its publication, in an otherwise idle system.

`

// events is functions as processes of their own, with NATS between them.
type events struct {
	binary    string
	env       []string
	conn      *pgx.Conn // looks into their database
	nats      *sandbox.NATS
	processes []*sandbox.Process
	messages  atomic.Int64 // that were handed over
}

// ground is what every measure with NATS stands on: a look into the database and
// a broker of its own, until end.
func ground(ctx context.Context, database string) (conn *pgx.Conn, broker *sandbox.NATS, end func() error, err error) {
	if conn, err = pgx.Connect(ctx, database); err != nil {
		return nil, nil, nil, err
	}
	if broker, err = sandbox.StartNATS(ctx, sandbox.NATSOptions{}); err != nil {
		return nil, nil, nil, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	return conn, broker, func() error { return errors.Join(broker.Stop(), conn.Close(context.WithoutCancel(ctx))) }, nil
}

// measureEvents measures what passes through NATS, on a database of its own.
func (s *summary) measureEvents(ctx context.Context, o options, binary, database string) (err error) {
	conn, server, end, err := ground(ctx, database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	e := &events{binary: binary, env: append(settings(database), "NATS_URL="+server.URL()), conn: conn, nats: server}
	for _, measure := range []func(context.Context, options) ([]result, error){e.wake, e.relay} {
		results, err := measure(ctx, o)
		if err := errors.Join(err, e.drain()); err != nil {
			return err
		}
		for _, r := range results {
			s.add(r)
		}
	}
	return nil
}

// start runs one function and gives its address.
func (e *events) start(ctx context.Context, function string, more ...string) (string, error) {
	env := slices.Concat(e.env, more, []string{"FUNCTION_TARGET=" + function})
	p, err := sandbox.Start(sandbox.Command{Path: e.binary, Env: env})
	if err != nil {
		return "", err
	}
	e.processes = append(e.processes, p)
	return addressOf(ctx, p)
}

// connect starts a function and gives a connection to it.
func (e *events) connect(ctx context.Context, function string) (*client, error) {
	address, err := e.start(ctx, function)
	if err != nil {
		return nil, err
	}
	return dial(address)
}

func (e *events) drain() error {
	var errs []error
	for _, p := range e.processes {
		errs = append(errs, drain(p))
	}
	e.processes = nil
	return errors.Join(errs...)
}

// sample takes one measurement after the other, not too close, for d.
func sample(ctx context.Context, d time.Duration, name string, connections int, one func() (time.Duration, error)) (result, error) {
	pace := time.NewTicker(apart)
	defer pace.Stop()
	var latencies []time.Duration
	for end := time.Now().Add(d); len(latencies) == 0 || time.Now().Before(end); {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return result{}, ctx.Err()
		}
		took, err := one()
		if err != nil {
			return result{}, fmt.Errorf("%s: %w", name, err)
		}
		latencies = append(latencies, took)
	}
	slices.Sort(latencies)
	return result{name: name, connections: connections, p50: quantile(latencies, 0.50), p99: quantile(latencies, 0.99)}, nil
}

// wake measures how long a submission takes to reach one of many claims that
// wait for it in another process.
func (e *events) wake(ctx context.Context, o options) ([]result, error) {
	claims, err := e.poll(ctx)
	if err != nil {
		return nil, err
	}
	submit, err := e.connect(ctx, "submit")
	if err != nil {
		return nil, err
	}
	defer submit.close()
	if err := e.until(ctx, quietSQL); err != nil {
		return nil, err
	}
	var t tasks
	r, err := sample(ctx, o.duration, "wake a waiting claim", pollers, func() (time.Duration, error) {
		start := time.Now()
		if _, err := t.submit(true)(submit, 1); err != nil {
			return 0, err
		}
		select {
		case c := <-claims:
			if want := t.accepted[len(t.accepted)-1]; c.err == nil && c.id != want {
				return 0, fmt.Errorf("task %s was claimed where %s was submitted", c.id, want)
			}
			return time.Since(start), c.err
		case <-time.After(callTimeout):
			return 0, errors.New("nobody who waited has claimed the task")
		}
	})
	return []result{r}, err
}

// claim is a task that was handed to a poll, or why there are no more.
type claim struct {
	id  string
	err error
}

// poll lets claims wait, again and again, in a process of their own until it is
// drained.
func (e *events) poll(ctx context.Context) (<-chan claim, error) {
	address, err := e.start(ctx, "claim")
	if err != nil {
		return nil, err
	}
	path := fmt.Sprintf("/api/v1/sms/tasks/pending?app_id=bench&wait=%d", pollWait)
	claims := make(chan claim, 2*pollers) // so that nobody who ends waits to be heard
	for range pollers {
		c, err := dial(address)
		if err != nil {
			return nil, err
		}
		go func() {
			defer c.close()
			for {
				answer, err := c.post(path, nil, nil)
				if err != nil {
					claims <- claim{err: err}
					return
				}
				for _, task := range claimedIn(answer) {
					claims <- claim{id: task.id}
				}
			}
		}()
	}
	return claims, nil
}

// quietSQL says that the functions have asked this database something, and
// nothing in the last moment.
const quietSQL = `
select coalesce(bool_and(state = 'idle') and max(state_change) < clock_timestamp() - interval '300 ms', false)
from pg_stat_activity where datname = current_database() and usename = 'sendonce_hot'`

// until waits for a condition of the database.
func (e *events) until(ctx context.Context, condition string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	look := time.NewTicker(settledEvery)
	defer look.Stop()
	for {
		var holds bool
		if err := e.conn.QueryRow(ctx, condition, args...).Scan(&holds); err != nil || holds {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", condition, ctx.Err())
		}
	}
}

// relay measures how fast the relay publishes what has piled up, and how long a
// single message waits for it.
func (e *events) relay(ctx context.Context, o options) ([]result, error) {
	saved, err := e.pileUp(ctx, o.messages)
	if err != nil {
		return nil, err
	}
	address, err := e.start(ctx, "relay")
	if err != nil {
		return nil, err
	}
	env := append(slices.Clone(e.env), "SENDONCE_FUNCTIONS_URL=http://"+address)
	trigger, err := sandbox.Start(sandbox.Command{Path: e.binary, Args: []string{"trigger"}, Env: env})
	if err != nil {
		return nil, err
	}
	e.processes = append(e.processes, trigger)
	if err := e.until(ctx, `select not exists (select from message_live)`); err != nil {
		return nil, err
	}
	backlog := result{name: "relay a backlog", connections: 1}
	if err := e.conn.QueryRow(ctx, backlogSQL).Scan(&backlog.rate); err != nil {
		return nil, fmt.Errorf("relay a backlog: %w", err)
	}
	messages, err := e.connect(ctx, "messages")
	if err != nil {
		return nil, err
	}
	defer messages.close()
	single, err := sample(ctx, o.duration, "message on its way", 1, func() (time.Duration, error) {
		id, err := e.save(messages)
		if err != nil {
			return 0, err
		}
		start := time.Now()
		err = e.until(ctx, `select exists (select from message_done where id = $1)`, id)
		return time.Since(start), err
	})
	return []result{saved, backlog, single}, errors.Join(err, e.published(ctx))
}

// pileUp saves n messages where nobody is woken for them.
func (e *events) pileUp(ctx context.Context, n int) (result, error) {
	address, err := e.start(ctx, "messages", "NATS_URL=")
	if err != nil {
		return result{}, err
	}
	return phase{"save a message", savers, 1, func() int { return n }, settleLimit, func(c *client, _ int) (int, error) {
		if _, err := e.save(c); err != nil {
			return 0, err
		}
		return 1, nil
	}}.run(ctx, address)
}

// backlogSQL gives the messages per second from the first batch to the last,
// which a row's end tells apart: it is the beginning of its transaction.
const backlogSQL = `
select count(*) filter (where finished_at < newest) / extract(epoch from newest - oldest)::float8
from message_done, (select min(finished_at) as oldest, max(finished_at) as newest from message_done) ends
group by newest, oldest`

// save hands over one message, which is at its end when it is sent, and gives
// its id.
func (e *events) save(c *client) (id string, err error) {
	body := fmt.Appendf(nil, `{"client_msg_id":"bench-%d","to":"msg.bench","confirm":false,"data":{"order":4711,"paid":"12.50"}}`, e.messages.Add(1))
	answer, err := c.post("/api/v1/messages", nil, body)
	if err != nil {
		return "", err
	}
	if id = text(answer, "server_msg_id"); id == "" {
		return "", errors.New("a message was answered without a server_msg_id")
	}
	return id, nil
}

// published checks that each message was sent once, and is in the stream once.
func (e *events) published(ctx context.Context) error {
	var sent, again int64
	const sql = `select count(*), count(*) filter (where send_no <> 1) from message_done where status = 1`
	if err := e.conn.QueryRow(ctx, sql).Scan(&sent, &again); err != nil {
		return fmt.Errorf("count messages: %w", err)
	}
	nc, err := nats.Connect(e.nats.URL())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, "MESSAGES")
	if err != nil {
		return err
	}
	if has, saved := int64(stream.CachedInfo().State.Msgs), e.messages.Load(); sent != saved || again != 0 || has != saved {
		return fmt.Errorf("%d messages were saved, but %d are sent, %d of them more than once, and the stream has %d", saved, sent, again, has)
	}
	return nil
}
