package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// headersPrefix is followed by a stream's name. One of the triggers replies to a request there with
// the headers of the stream's messages. Functions cannot read them: the reply to a fetch may be empty,
// and at a reply subject such as $JS.API.STREAM.DELETE.X it would be a valid request.
const headersPrefix = "$SENDONCE.HEADERS."

const (
	headersTimeout   = 6 * time.Second // of one request
	headersFetch     = 1000            // messages that are fetched together
	headersFetchWait = 2 * time.Second
	headersFetches   = 20  // of one request; the next request continues
	headersBacklog   = 16  // requests that wait for one trigger; others time out
	headersMax       = 512 // bytes of a header that are sent; longer ones are sent empty
	headersPart      = 8   // a page is at most this part of the server's max_payload: JSON may escape each byte by six
	headersSize      = 100 // bytes that a message's numbers and names take in JSON, roughly
	headersIdle      = 10 * time.Second
	headersRestart   = 10 * time.Second    // after a failed subscription
	headersConsumer  = "sendonce-headers-" // name prefix of the consumer that reads headers
)

// headersOf are the streams whose headers may be requested: those that deliver trims by them.
var headersOf = []string{StreamMessages, StreamUsers}

// headersRequest requests headers of the messages of a stream.
type headersRequest struct {
	From uint64 `json:"from"` // sequence number of the first
	// Until ends the reply after a page with a message that is younger; zero = none is.
	Until time.Time `json:"until,omitzero"`
}

// headersPage is a part of the reply to a headersRequest.
type headersPage struct {
	Number   int             `json:"number"` // from 0
	Messages []messageHeader `json:"messages,omitempty"`
	Last     bool            `json:"last,omitempty"` // of this reply
	More     bool            `json:"more,omitempty"` // in the last page: another request continues after it
	Error    string          `json:"error,omitempty"`
}

// messageHeader is what a trim needs of a message. Strings of more than headersMax bytes are empty.
type messageHeader struct {
	Seq     uint64    `json:"seq"`
	At      time.Time `json:"at"`
	Subject string    `json:"subject"`
	ID      string    `json:"id,omitempty"`     // of the CloudEvent
	Source  string    `json:"source,omitempty"` // of the CloudEvent
	MsgID   string    `json:"msg_id,omitempty"`
	Size    int64     `json:"size,omitempty"` // of the data
}

// readHeaders calls do with the messages of a stream, page by page, until do returns false, there are no
// more, or one is younger than until (zero = none is). The trigger reads them.
func (l *Connection) readHeaders(ctx context.Context, stream string, from uint64, until time.Time, do func([]messageHeader) (bool, error)) error {
	for {
		next, err := l.readHeadersFrom(ctx, stream, headersRequest{From: from, Until: until}, do)
		if err != nil || next == 0 {
			return err
		}
		from = next
	}
}

// readHeadersFrom sends one request. It returns where the next one continues; 0 = nowhere.
func (l *Connection) readHeadersFrom(ctx context.Context, stream string, wants headersRequest, do func([]messageHeader) (bool, error)) (next uint64, err error) {
	body, err := json.Marshal(wants)
	if err != nil {
		return 0, err
	}
	reply := l.nats().NewInbox()
	sub, err := l.nats().SubscribeSync(reply)
	if err != nil {
		return 0, unavailable(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only where the connection is lost, and the subscription with it
	if err := l.nats().PublishRequest(headersPrefix+stream, reply, body); err != nil {
		return 0, unavailable(err)
	}
	for n := 0; ; n++ {
		page, err := nextPage(ctx, sub)
		switch {
		case err != nil:
			return 0, unavailable(fmt.Errorf("headers of %s: %w", stream, err))
		case page.Number != n:
			// Purging up to a later message would remove the unseen ones too.
			return 0, unavailable(fmt.Errorf("headers of %s: page %d was lost", stream, n))
		}
		if len(page.Messages) > 0 {
			if more, err := do(page.Messages); err != nil || !more {
				return 0, err
			}
			next = page.Messages[len(page.Messages)-1].Seq + 1
		}
		if page.Last {
			if !page.More {
				return 0, nil
			}
			return next, nil
		}
	}
}

func nextPage(ctx context.Context, sub *nats.Subscription) (page headersPage, err error) {
	ctx, cancel := context.WithTimeout(ctx, headersFetchWait+time.Second)
	defer cancel()
	m, err := sub.NextMsgWithContext(ctx)
	if errors.Is(err, nats.ErrNoResponders) {
		return page, errors.New("no trigger is connected that reads them")
	}
	if err != nil {
		return page, err
	}
	if err := json.Unmarshal(m.Data, &page); err != nil {
		return page, err
	}
	if page.Error != "" {
		return page, errors.New(page.Error)
	}
	return page, nil
}

// ServeHeaders replies to requests for headers until ctx ends, one at a time. It is the trigger's.
func (b *Bus) ServeHeaders(ctx context.Context) { b.serveHeaders(ctx, headersFetches) }

func (b *Bus) serveHeaders(ctx context.Context, fetches int) {
	logged := ""
	for ctx.Err() == nil {
		l, err := b.AwaitConnection(ctx)
		if err != nil {
			return
		}
		linked, unbind := l.UntilLost(ctx)
		if err := l.serveHeaders(linked, fetches); linked.Err() == nil {
			if err.Error() != logged {
				logged = err.Error()
				b.log.Error("requests for headers of messages get no reply, so streams are not trimmed", "error", err)
			}
			select {
			case <-time.After(headersRestart):
			case <-linked.Done():
			}
		}
		unbind()
	}
}

// serveHeaders replies to requests until ctx ends or the subscription fails.
func (l *Connection) serveHeaders(ctx context.Context, fetches int) error {
	sub, err := l.nats().QueueSubscribeSync(headersPrefix+"*", UserTrigger)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only where the connection is lost, and the subscription with it
	if err := sub.SetPendingLimits(headersBacklog, -1); err != nil {
		return err
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		switch {
		case errors.Is(err, nats.ErrSlowConsumer): // more than the backlog; the others time out
		case err != nil:
			return err
		default:
			l.replyWithHeaders(ctx, m, fetches)
		}
	}
}

// replyWithHeaders replies to one request. It publishes to reply subjects only: with this connection's
// rights, anything else could be a request.
func (l *Connection) replyWithHeaders(ctx context.Context, m *nats.Msg, fetches int) {
	stream := strings.TrimPrefix(m.Subject, headersPrefix)
	var wants headersRequest
	if !slices.Contains(headersOf, stream) || !strings.HasPrefix(m.Reply, replyRoot) || json.Unmarshal(m.Data, &wants) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, headersTimeout)
	defer cancel()
	reply := &headersReply{publish: func(body []byte) error { return l.nats().Publish(m.Reply, body) }, maxSize: int(l.nats().MaxPayload()) / headersPart}
	if err := l.listHeaders(ctx, stream, wants, fetches, reply); err != nil {
		_ = reply.send(headersPage{Error: err.Error(), Last: true}) // the other side times out without it
	}
}

// headersReply is the reply to one request.
type headersReply struct {
	publish func([]byte) error
	maxSize int
	sent    int
	page    headersPage
	size    int
}

func (a *headersReply) add(m messageHeader) error {
	size := headersSize + len(m.Subject) + len(m.ID) + len(m.Source) + len(m.MsgID)
	if len(a.page.Messages) > 0 && a.size+size > a.maxSize {
		if err := a.flush(); err != nil {
			return err
		}
	}
	a.page.Messages, a.size = append(a.page.Messages, m), a.size+size
	return nil
}

func (a *headersReply) flush() error {
	page := a.page
	a.page, a.size = headersPage{}, 0
	return a.send(page)
}

func (a *headersReply) send(page headersPage) error {
	page.Number = a.sent
	a.sent++
	body, err := json.Marshal(page)
	if err != nil {
		return err
	}
	return a.publish(body)
}

// listHeaders reads with a consumer of its own.
func (l *Connection) listHeaders(ctx context.Context, stream string, wants headersRequest, fetches int, reply *headersReply) error {
	s, err := l.js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Name:          headersConsumer + fmt.Sprintf("%x", time.Now().UnixNano()),
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(wants.From, 1),
		AckPolicy: jetstream.AckNonePolicy, HeadersOnly: true, MemoryStorage: true, Replicas: 1, InactiveThreshold: headersIdle,
	})
	if err != nil {
		return err
	}
	defer func() { _ = s.DeleteConsumer(context.WithoutCancel(ctx), c.CachedInfo().Name) }() // otherwise the idle limit deletes it
	pending, read, young := c.CachedInfo().NumPending, uint64(0), false
	for ; pending > 0 && !young && fetches > 0; fetches-- {
		batch, err := c.Fetch(int(min(pending, headersFetch)), jetstream.FetchMaxWait(headersFetchWait))
		if err != nil {
			return err
		}
		before := read
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return err
			}
			if read++; meta.Sequence.Consumer != read {
				// A trim would take the unseen message for one that is gone.
				return fmt.Errorf("a message of %s was lost in transit", stream)
			}
			pending = meta.NumPending
			young = young || !wants.Until.IsZero() && meta.Timestamp.After(wants.Until)
			if err := reply.add(headerOf(m, meta)); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil {
			return err
		}
		if read == before { // what was pending is gone
			pending = 0
		}
	}
	reply.page.Last, reply.page.More = true, pending > 0 && !young
	return reply.flush()
}

func headerOf(m jetstream.Msg, meta *jetstream.MsgMetadata) messageHeader {
	size, _ := strconv.ParseInt(m.Headers().Get("Nats-Msg-Size"), 10, 64) // 0 if absent
	bounded := func(name string) string {
		if value := m.Headers().Get(name); len(value) <= headersMax {
			return value
		}
		return ""
	}
	return messageHeader{
		Seq: meta.Sequence.Stream, At: meta.Timestamp, Subject: m.Subject(), Size: size,
		ID: bounded(attributePrefix + "id"), Source: bounded(attributePrefix + "source"), MsgID: bounded(jetstream.MsgIDHeader),
	}
}
