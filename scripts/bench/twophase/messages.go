package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/scripts/bench"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// The acknowledgements of messages.
const (
	accepted = "accepted"
	saved    = "saved"
)

// phase returns a phase in which n senders submit messages and request the acknowledgement ack. A sender makes one call at
// a time, so the order of its messages is known.
func (t *twoPhase) phase(name, ack string, n int) bench.Phase {
	type sender struct {
		name   string
		number int // of its newest message
	}
	free := make(chan *sender, n) // one sender for each connection
	for range n {
		free <- &sender{name: fmt.Sprintf("%s-%d", ack, t.senders.Add(1))}
	}
	call := func(c *bench.Client, _ int) (int, error) {
		s := <-free
		defer func() { free <- s }()
		s.number++
		body := fmt.Appendf(nil, `{"from":"%[1]s","client_msg_id":"%[2]d","to":"user:%[1]s","ack":"%[3]s","data":{"sender":"%[1]s","n":%[2]d,"text":"See you at the harbour at eight"}}`,
			s.name, s.number, ack)
		response, err := c.Post("/api/v1/messages", nil, body)
		if err != nil {
			return 0, err
		}
		id, got := bench.JSONString(response, "server_msg_id"), bench.JSONString(response, "ack")
		if id == "" || got != ack {
			return 0, fmt.Errorf("the acknowledgement is %q, but %s was requested", got, ack)
		}
		t.ledger.Sent(load.Message{Sender: s.name, N: s.number}, load.Sent{ID: id, Ack: ack})
		return 1, nil
	}
	return bench.Phase{Name: name, Connections: n, Duration: t.o.duration, MaxRows: bench.NoLimit, Call: call}
}

// publish returns how many publications per second are acknowledged if each of n goroutines makes one at a time.
func (t *twoPhase) publish(ctx context.Context, n int) (float64, error) {
	g := load.New(ctx)
	for range n {
		g.Start("publish", 0, func(ctx context.Context) error {
			_, err := t.JS.Publish(ctx, bench.BaselineSubject, make([]byte, 128))
			return err
		})
	}
	startedAt := time.Now()
	time.Sleep(t.o.duration / 2)
	g.Stop()
	outcomes := g.Outcomes()["publish"]
	return float64(outcomes.Succeeded) / time.Since(startedAt).Seconds(), errors.Join(append(outcomes.Failures, ctx.Err())...)
}

// waitSaved waits until the trigger has created the consumers of all shards and every accepted message is saved. It
// returns the last sequence number of the stream.
func (t *twoPhase) waitSaved(ctx context.Context) (last uint64, err error) {
	err = bench.WaitUntil(ctx, 20*time.Millisecond, "accepted messages to be saved", func() (bool, error) {
		stream, err := t.JS.Stream(ctx, "ACCEPTED")
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		last = stream.CachedInfo().State.LastSeq
		consumers, left := 0, 0
		list := stream.ListConsumers(ctx)
		for c := range list.Info() {
			consumers++
			left += int(c.NumPending) + c.NumAckPending
		}
		return consumers == t.o.shards && left == 0, list.Err()
	})
	return last, err
}

// waitIdle waits until all messages are saved and sent, and all events are published.
func (t *twoPhase) waitIdle(ctx context.Context) error {
	if _, err := t.waitSaved(ctx); err != nil {
		return err
	}
	return t.Wait(ctx, `select not exists (select from message_live) and not exists (select from event_outbox)`)
}

// Types of the events in the inboxes of users.
const (
	messageType = "sendonce.message.v1"
	savedType   = "sendonce.ack.saved.v1"
)

// check compares the acknowledged messages with the database and with the messages that the receivers got,
// and the accepted ones with the notices to their senders.
func (t *twoPhase) check(ctx context.Context) (string, error) {
	notices, err := t.readInboxes(ctx)
	if err != nil {
		return "", err
	}
	if err := errors.Join(t.ledger.CheckMessages(ctx, t.Conn), t.ledger.CheckReceived()); err != nil {
		return "", err
	}
	overtaken := map[string]int{}
	for sender, n := range t.ledger.Overtaken() {
		ack, _, _ := strings.Cut(sender, "-") // phase names senders <ack>-<number>
		overtaken[ack] += n
	}
	sent, _, repeated := t.ledger.Messages()
	if want := t.ledger.Acknowledged(accepted); notices != want || overtaken[accepted] > 0 {
		return "", fmt.Errorf("of %d accepted messages, %d were reported as saved to their senders, and %d were received out of order", want, notices, overtaken[accepted])
	}
	return fmt.Sprintf("Checked: %d messages acknowledged, each in the database and received, %d of them more than once; all accepted ones in the order of their\nsender, of the saved ones %d out of order. The senders of all %d accepted messages got the notice that these are saved.",
		sent, repeated, overtaken[saved], notices), nil
}

// readInboxes records the messages that users received, and returns the number of messages whose senders
// got the notice that the message is saved.
func (t *twoPhase) readInboxes(ctx context.Context) (notices int, err error) {
	stream, err := t.JS.Stream(ctx, "USERS")
	if err != nil {
		return 0, err
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return 0, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return 0, err
	}
	defer messages.Stop()
	notified := map[string]bool{}
	for remaining := stream.CachedInfo().State.Msgs; remaining > 0; remaining-- {
		m, err := messages.Next(jetstream.NextMaxWait(bench.CallTimeout))
		if err := errors.Join(err, ctx.Err()); err != nil {
			return 0, fmt.Errorf("%d messages are left in the inboxes: %w", remaining, err)
		}
		switch kind := m.Headers().Get("ce-type"); kind {
		case savedType:
			notified[bench.JSONString(m.Data(), "server_msg_id")] = true
		case messageType:
			var got load.Message
			if err := json.Unmarshal(m.Data(), &got); err != nil {
				return 0, fmt.Errorf("a message in %s: %w", m.Subject(), err)
			}
			t.ledger.Received(got)
		default:
			return 0, fmt.Errorf("unexpected event %s in %s", kind, m.Subject())
		}
	}
	return len(notified), nil
}
