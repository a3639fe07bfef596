package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/scripts/bench"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

const (
	savers          = 64
	publishBaseline = "publish"
)

// messages saves messages with "confirm": false. Such a message is final when it is sent.
type messages struct {
	ledger *load.Ledger
	number atomic.Int64
}

func (m *messages) save(c *bench.Client) (id string, err error) {
	n := int(m.number.Add(1))
	body := fmt.Appendf(nil, `{"from":"bench","client_msg_id":"%d","to":"msg.bench","confirm":false,"data":{"sender":"bench","n":%[1]d}}`, n)
	response, err := c.Post("/api/v1/messages", nil, body)
	if err != nil {
		return "", err
	}
	if id = bench.JSONString(response, "server_msg_id"); id == "" {
		return "", errors.New("the response to a message has no server_msg_id")
	}
	m.ledger.Sent(load.Message{Sender: "bench", N: n}, load.Sent{ID: id, Ack: "saved"})
	return id, nil
}

// relayedSQL returns the messages per second from the first batch after $1 to the last. finished_at
// is the start of the transaction of a batch, so the messages of the last batch are not counted: when
// this transaction ended is not known.
const relayedSQL = `
with done as (select finished_at from message_done where finished_at >= $1),
ends as (select min(finished_at) as oldest, max(finished_at) as newest from done)
select count(*) filter (where finished_at < newest) / extract(epoch from newest - oldest)::float8
from done, ends group by newest, oldest`

// measureMessages measures how fast messages are saved, how fast the relay publishes a
// backlog, and how long it takes until a single saved message is sent.
func measureMessages(ctx context.Context, o options, s *bench.Stack, table *bench.Table) (string, error) {
	addressWithoutNATS, err := s.Start(ctx, "messages", "NATS_URL=") // cannot wake the relay, so messages wait
	if err != nil {
		return "", err
	}
	clientWithNATS, err := s.Connect(ctx, "messages")
	if err != nil {
		return "", err
	}
	defer clientWithNATS.Close()
	relayAddress, err := s.Start(ctx, "relay")
	if err != nil {
		return "", err
	}
	m := &messages{ledger: load.NewLedger()}
	err = table.Rounds(o.rounds, func(table *bench.Table) (err error) {
		p := bench.Phase{Name: "save a message", Connections: savers, Duration: bench.CallTimeout, MaxRows: o.messages}
		p.Call = func(c *bench.Client, _ int) (int, error) {
			if _, err := m.save(c); err != nil {
				return 0, err
			}
			return 1, nil
		}
		p.Baselines = []bench.Baseline{s.Machine.Pgbench(savers, o.duration/2)}
		saved, err := p.Measure(ctx, addressWithoutNATS)
		if err != nil {
			return err
		}
		table.Add(saved)

		backlog := bench.Result{Name: "relay a backlog", Connections: 1}
		baseline, err := publishAll(s.JS, o.messages)
		if err != nil {
			return err
		}
		startedAt := time.Now()
		stop, err := s.StartTrigger(relayAddress)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
		if err := s.Wait(ctx, `select not exists (select from message_live)`); err != nil {
			return err
		}
		if err := s.Conn.QueryRow(ctx, relayedSQL, startedAt).Scan(&backlog.Rate); err != nil {
			return fmt.Errorf("relay a backlog: %w", err)
		}
		backlog.Compare(publishBaseline, baseline)
		table.Add(backlog)

		single, err := bench.Sample(ctx, o.duration, publishBaseline, func() (took, baseline time.Duration, err error) {
			startedAt := time.Now()
			if _, err := s.JS.Publish(ctx, bench.BaselineSubject, make([]byte, 64)); err != nil {
				return 0, 0, err
			}
			baseline = time.Since(startedAt)
			id, err := m.save(clientWithNATS)
			if err != nil {
				return 0, 0, err
			}
			startedAt = time.Now()
			err = s.Wait(ctx, `select exists (select from message_done where id = $1)`, id)
			return time.Since(startedAt), baseline, err
		})
		single.Name, single.Connections = "send a message", 1
		table.Add(single)
		return err
	})
	if err != nil {
		return "", err
	}
	return m.check(ctx, s)
}

// publishAll publishes n messages without waiting after each, and returns how many were acknowledged per second.
func publishAll(js jetstream.JetStream, n int) (float64, error) {
	startedAt := time.Now()
	for range n {
		if _, err := js.PublishAsync(bench.BaselineSubject, make([]byte, 64)); err != nil {
			return 0, err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
		return float64(n) / time.Since(startedAt).Seconds(), nil
	case <-time.After(bench.CallTimeout):
		return 0, errors.New("publications to the baseline's stream were not acknowledged")
	}
}

// check checks that the database and the stream have each message once.
func (m *messages) check(ctx context.Context, s *bench.Stack) (string, error) {
	if err := m.ledger.CheckMessages(ctx, s.Conn); err != nil {
		return "", err
	}
	var sent, repeated int
	const sql = `select count(*), count(*) filter (where send_no <> 1) from message_done where status = 1 /* sent */`
	if err := s.Conn.QueryRow(ctx, sql).Scan(&sent, &repeated); err != nil {
		return "", fmt.Errorf("count messages: %w", err)
	}
	stream, err := s.JS.Stream(ctx, "MESSAGES")
	if err != nil {
		return "", err
	}
	saved, _, _ := m.ledger.Messages()
	if published := int(stream.CachedInfo().State.Msgs); sent != saved || repeated != 0 || published != saved {
		return "", fmt.Errorf("%d messages were saved, but %d are sent, %d of them more than once, and the stream has %d", saved, sent, repeated, published)
	}
	return fmt.Sprintf("Checked: %d messages saved, each sent once and once in the stream.", saved), nil
}
