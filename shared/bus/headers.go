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

const (
	headersTimeout   = 6 * time.Second     // of replying to one request
	headersFetch     = 1000                // messages that are fetched together
	headersFetchWait = 2 * time.Second     // of one fetch; the requester waits a second longer for each page
	headersFetches   = 20                  // fetches for one request; readHeaders sends another request for later messages
	headersBacklog   = 16                  // requests that wait in one trigger; further requests time out
	headersMax       = 512                 // bytes of a header value; longer values are sent as empty
	headersPart      = 8                   // before encoding, a page has at most an eighth of max_payload: JSON may need six bytes for one byte of text
	headersSize      = 100                 // estimated bytes of a message's numbers and field names in JSON
	headersIdle      = 10 * time.Second    // NATS deletes a consumer that was not used for so long
	headersRestart   = 10 * time.Second    // after a failed subscription
	headersConsumer  = "sendonce-headers-" // name prefix of the consumer that reads headers
)

type headersRequest struct {
	From  uint64    `json:"from"`           // sequence number of the first message
	Until time.Time `json:"until,omitzero"` // fetching ends after a fetch with a younger message; zero = no limit
}

// headersPage is a part of the reply to a headersRequest.
type headersPage struct {
	Number   int             `json:"number"` // from 0
	Messages []messageHeader `json:"messages,omitempty"`
	Last     bool            `json:"last,omitempty"` // the last page of this reply
	More     bool            `json:"more,omitempty"` // with Last: later messages are left for another request
	Error    string          `json:"error,omitempty"`
}

// messageHeader has the headers that a trim needs. Values of more than headersMax bytes are empty.
type messageHeader struct {
	Seq     uint64    `json:"seq"`
	At      time.Time `json:"at"`
	Subject string    `json:"subject"`
	ID      string    `json:"id,omitempty"`     // of the CloudEvent
	Source  string    `json:"source,omitempty"` // of the CloudEvent
	MsgID   string    `json:"msg_id,omitempty"`
	Size    int64     `json:"size,omitempty"` // of the data
}

// readHeaders requests the headers of a stream's messages from the trigger and calls do with each page,
// until do returns false, no message is left, or the trigger has fetched a message younger than until (zero = no
// limit). do also receives the younger messages of the last fetch.
func (conn *Connection) readHeaders(ctx context.Context, stream string, from uint64, until time.Time, do func([]messageHeader) (bool, error)) error {
	for {
		next, err := conn.readHeadersFrom(ctx, stream, headersRequest{From: from, Until: until}, do)
		if err != nil || next == 0 {
			return err
		}
		from = next
	}
}

// readHeadersFrom sends one request. next is where the next request must begin; 0 = no other request is needed.
func (conn *Connection) readHeadersFrom(ctx context.Context, stream string, request headersRequest, do func([]messageHeader) (bool, error)) (next uint64, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return 0, err
	}
	reply := conn.nats().NewInbox()
	sub, err := conn.nats().SubscribeSync(reply)
	if err != nil {
		return 0, unavailable(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only if the connection is lost, which ends the subscription too
	if err := conn.nats().PublishRequest(headersPrefix+stream, reply, body); err != nil {
		return 0, unavailable(err)
	}
	for n := 0; ; n++ {
		page, err := nextPage(ctx, sub)
		switch {
		case err != nil:
			return 0, unavailable(fmt.Errorf("headers of %s: %w", stream, err))
		case page.Number != n:
			// A purge up to a later message would also remove the messages of the lost page.
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
		return page, errors.New("no trigger is connected to read them")
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

// ServeHeaders replies to requests for headers, one at a time, until ctx ends. Only the trigger calls it.
func (b *Bus) ServeHeaders(ctx context.Context) { b.serveHeaders(ctx, headersFetches) }

func (b *Bus) serveHeaders(ctx context.Context, fetches int) {
	logged := ""
	for ctx.Err() == nil {
		conn, err := b.AwaitConnection(ctx)
		if err != nil {
			return
		}
		connCtx, unbind := conn.UntilLost(ctx)
		if err := conn.serveHeaders(connCtx, fetches); connCtx.Err() == nil {
			if err.Error() != logged {
				logged = err.Error()
				b.log.Error("cannot reply to requests for message headers: unless another trigger replies, MESSAGES and USERS are not trimmed", "error", err)
			}
			select {
			case <-time.After(headersRestart):
			case <-connCtx.Done():
			}
		}
		unbind()
	}
}

// serveHeaders replies to requests until ctx ends or the subscription fails.
func (conn *Connection) serveHeaders(ctx context.Context, fetches int) error {
	sub, err := conn.nats().QueueSubscribeSync(headersPrefix+"*", UserTrigger)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // as in readHeadersFrom
	if err := sub.SetPendingLimits(headersBacklog, -1); err != nil {
		return err
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		switch {
		case errors.Is(err, nats.ErrSlowConsumer): // more than headersBacklog requests; the others time out
		case err != nil:
			return err
		default:
			conn.replyWithHeaders(ctx, m, fetches)
		}
	}
}

// replyWithHeaders replies to one request, if its reply subject begins with replyRoot. A message to another
// subject could be a request to NATS with the permissions of the trigger.
func (conn *Connection) replyWithHeaders(ctx context.Context, m *nats.Msg, fetches int) {
	stream := strings.TrimPrefix(m.Subject, headersPrefix)
	var request headersRequest
	if !slices.Contains(headerStreams, stream) || !strings.HasPrefix(m.Reply, replyRoot) || json.Unmarshal(m.Data, &request) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, headersTimeout)
	defer cancel()
	reply := &headersReply{publish: func(body []byte) error { return conn.nats().Publish(m.Reply, body) }, maxSize: int(conn.nats().MaxPayload()) / headersPart}
	if err := conn.listHeaders(ctx, stream, request, fetches, reply); err != nil {
		_ = reply.send(headersPage{Error: err.Error(), Last: true}) // if it is lost, the requester times out
	}
}

// headersReply is the reply to one request.
type headersReply struct {
	publish func([]byte) error
	maxSize int // of a page
	sent    int // pages
	page    headersPage
	size    int // of page
}

func (r *headersReply) add(m messageHeader) error {
	size := headersSize + len(m.Subject) + len(m.ID) + len(m.Source) + len(m.MsgID)
	if len(r.page.Messages) > 0 && r.size+size > r.maxSize {
		if err := r.flush(); err != nil {
			return err
		}
	}
	r.page.Messages, r.size = append(r.page.Messages, m), r.size+size
	return nil
}

func (r *headersReply) flush() error {
	page := r.page
	r.page, r.size = headersPage{}, 0
	return r.send(page)
}

func (r *headersReply) send(page headersPage) error {
	page.Number = r.sent
	r.sent++
	body, err := json.Marshal(page)
	if err != nil {
		return err
	}
	return r.publish(body)
}

// listHeaders reads the headers with a temporary consumer and adds them to the reply.
func (conn *Connection) listHeaders(ctx context.Context, stream string, request headersRequest, fetches int, reply *headersReply) error {
	s, err := conn.js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Name:          headersConsumer + fmt.Sprintf("%x", time.Now().UnixNano()),
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(request.From, 1),
		AckPolicy: jetstream.AckNonePolicy, HeadersOnly: true, MemoryStorage: true, Replicas: 1, InactiveThreshold: headersIdle,
	})
	if err != nil {
		return err
	}
	defer func() { _ = s.DeleteConsumer(context.WithoutCancel(ctx), c.CachedInfo().Name) }() // if that fails, NATS deletes it after headersIdle
	pending, received, young := c.CachedInfo().NumPending, uint64(0), false
	for ; pending > 0 && !young && fetches > 0; fetches-- {
		batch, err := c.Fetch(int(min(pending, headersFetch)), jetstream.FetchMaxWait(headersFetchWait))
		if err != nil {
			return err
		}
		before := received
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return err
			}
			if received++; meta.Sequence.Consumer != received {
				// A trim would regard the missing message as removed.
				return fmt.Errorf("a message of %s was lost in transit", stream)
			}
			pending = meta.NumPending
			young = young || !request.Until.IsZero() && meta.Timestamp.After(request.Until)
			if err := reply.add(headerOf(m, meta)); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil {
			return err
		}
		if received == before { // the pending messages were removed meanwhile
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
