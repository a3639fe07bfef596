package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// letters is what was handed over in messages, as their senders were told. A
// sender has one call under way at a time and numbers its messages.
type letters struct {
	mu      sync.Mutex
	senders int
	ids     map[string][]string // by the acknowledgement, accepted or saved
}

// letter is the data of a message.
type letter struct {
	From string `json:"from"`
	No   int    `json:"no"`
	Text string `json:"text"`
}

// post hands over messages of n senders and demands the acknowledgement.
func (l *letters) post(ack string, n int) func(*client, int) (int, error) {
	type sender struct {
		name string
		no   int
	}
	free := make(chan *sender, n) // nobody waits: there are as many connections
	for range n {
		l.senders++
		free <- &sender{name: fmt.Sprintf("%s-%d", ack, l.senders)}
	}
	return func(c *client, _ int) (int, error) {
		s := <-free
		defer func() { free <- s }()
		s.no++
		body := fmt.Appendf(nil, `{"from":"%s","client_msg_id":"%d","to":"user:bench","ack":"%s","data":{"from":"%s","no":%d,"text":"See you at the harbour at eight"}}`,
			s.name, s.no, ack, s.name, s.no)
		answer, err := c.post("/api/v1/messages", nil, body)
		if err != nil {
			return 0, err
		}
		id, got := text(answer, "server_msg_id"), text(answer, "ack")
		if id == "" || got != ack {
			return 0, fmt.Errorf("%q was answered where %s was asked for", got, ack)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ids[ack] = append(l.ids[ack], id)
		return 1, nil
	}
}

// received is what receivers find in their inboxes.
type received struct {
	messages, duplicates int            // duplicates are not among messages
	reorders             map[string]int // by acknowledgement: messages behind a later one of their sender
	told                 int            // accepted messages whose senders were told that they are saved
}

const (
	inboxes     = "USERS"
	quietLimit  = 30 * time.Second // for the next message of a stream that has one
	savedType   = "sendonce.ack.saved.v1"
	messageType = "sendonce.message.v1"
)

// receive reads all that users were sent, in its order.
func (l *letters) receive(ctx context.Context, js jetstream.JetStream) (received, error) {
	var r received
	stream, err := js.Stream(ctx, inboxes)
	if err != nil {
		return r, err
	}
	left := stream.CachedInfo().State.Msgs
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return r, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return r, err
	}
	defer messages.Stop()
	read := ledger{received: received{reorders: map[string]int{}}, seen: map[string]bool{}, last: map[string]int{}}
	for ; left > 0; left-- {
		m, err := messages.Next(jetstream.NextMaxWait(quietLimit))
		if err := errors.Join(err, ctx.Err()); err != nil {
			return r, fmt.Errorf("%d messages are left in the inboxes: %w", left, err)
		}
		if err := read.event(m); err != nil {
			return r, err
		}
	}
	return read.received, nil
}

// ledger is what was read so far.
type ledger struct {
	received
	seen map[string]bool // ids, and with a + before them those that were told of
	last map[string]int  // the highest number of each sender
}

func (l *ledger) event(m jetstream.Msg) error {
	switch kind := m.Headers().Get("ce-type"); kind {
	case savedType:
		id := "+" + text(m.Data(), "server_msg_id")
		if !l.seen[id] {
			l.told++
		}
		l.seen[id] = true
		return nil
	case messageType:
		var got letter
		if err := json.Unmarshal(m.Data(), &got); err != nil {
			return fmt.Errorf("a message in %s: %w", m.Subject(), err)
		}
		l.message(m.Headers().Get("ce-id"), got)
		return nil
	default:
		return fmt.Errorf("an event %s lies in %s", kind, m.Subject())
	}
}

func (l *ledger) message(id string, m letter) {
	if l.seen[id] {
		l.duplicates++
		return
	}
	l.seen[id] = true
	l.messages++
	if m.No < l.last[m.From] {
		l.reorders[ackOf(m.From)]++
	}
	l.last[m.From] = max(l.last[m.From], m.No)
}

// ackOf is what a sender of that name asks for.
func ackOf(sender string) string {
	ack, _, _ := strings.Cut(sender, "-")
	return ack
}
