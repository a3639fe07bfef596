package trigger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/bus"
)

const (
	batchTries      = 3                      // if this try of a batch or a later try gets 500, the trigger posts the events of the batch one by one
	localTries      = 5                      // after so many failed tries another trigger may try
	batchBackoffMax = 10 * time.Second       // short, since later batches wait meanwhile
	othersPoll      = 250 * time.Millisecond // between two checks whether another trigger still holds messages
	unpinTimeout    = 2 * time.Second
	pinHeader       = "Nats-Pin-Id"
)

// batchPipeline delivers a route of ordered batches over one connection.
//
// Invariant: a batch begins only when no other trigger holds unsettled messages of the route. So the
// messages that this trigger holds begin with the oldest unsettled message, and one acknowledgement settles a
// batch. NATS numbers the deliveries of a consumer. While this trigger has received every number, no other
// trigger can hold messages, so the server need not be queried.
type batchPipeline struct {
	t             *Trigger
	r             *route
	consumer      jetstream.Consumer
	pin           string // Nats-Pin-Id of the message that was received last
	nextDelivery  uint64 // number that the next delivery has unless another trigger receives it
	heldElsewhere bool   // another trigger may hold messages

	mu   sync.Mutex
	held []*item // in stream order; under mu
}

// pullBatches delivers batches until ctx ends, the connection is lost or an error other than yieldError occurs.
func (t *Trigger) pullBatches(ctx, work context.Context, conn *bus.Connection, consumer jetstream.Consumer, r *route) error {
	p := &batchPipeline{t: t, r: r, consumer: consumer, heldElsewhere: true}
	if cfg := consumer.CachedInfo().Config; cfg.PriorityPolicy != jetstream.PriorityPolicyPinned || cfg.AckPolicy != jetstream.AckAllPolicy {
		return fmt.Errorf("consumer %s cannot keep the order of batches: delete it, and the trigger will create it correctly", r.Durable)
	}
	for {
		err := p.run(ctx, work)
		var yield yieldError
		yields := errors.As(err, &yield)
		if !conn.Lost() && (yields || ctx.Err() != nil) {
			p.unpin(conn)
		}
		switch {
		case yields:
			r.sleep(ctx, yield.after)
		case err != nil:
			return err
		}
	}
}

// yieldError ends a run that could not deliver, so that another trigger can try. This trigger continues later.
type yieldError struct{ after time.Duration }

func (yieldError) Error() string { return "perhaps another trigger can deliver it" }

// run fetches and delivers batches until no message is left or an error occurs. Then it returns (naks) the
// unsettled messages to NATS.
func (p *batchPipeline) run(ctx, work context.Context) error {
	stop := heartbeat(p.r.AckWait/3, p.extendAckWait)
	err := p.fetchBatch(ctx)
	for err == nil {
		items := p.nextBatch()
		if len(items) == 0 {
			break
		}
		err = p.deliver(ctx, work, items)
	}
	stop()
	p.nakHeld(work)
	if errors.Is(err, jetstream.ErrPinIDMismatch) { // NATS delivers to another trigger now
		return nil
	}
	return err
}

func (p *batchPipeline) extendAckWait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, it := range p.held {
		// If a heartbeat is lost, the next one still comes in time, or the message is redelivered.
		_ = it.msg.InProgress()
	}
}

// fetchBatch waits for a message, then for more messages within BatchWait, then until no other trigger holds
// messages. If no message arrives, fetchBatch returns nil and this trigger holds nothing.
func (p *batchPipeline) fetchBatch(ctx context.Context) error {
	// The next request must arrive before the pin expires.
	idle, cancel := context.WithTimeout(ctx, min(pullTimeout, p.r.AckWait/2))
	defer cancel()
	p.r.setDeadline(pullTimeout)
	if _, err := p.fetch(1, jetstream.FetchContext(idle)); err != nil || p.count() == 0 {
		return cmp.Or(ctx.Err(), err)
	}
	if err := p.fetchMore(p.r.Batch-1, p.r.BatchWait); err != nil {
		return err
	}
	return p.awaitOthers(ctx)
}

// fetchMore fetches up to n messages that arrive within wait. The server must end the wait, not the client: if
// a message reaches a client that has stopped waiting, NATS redelivers the message only after AckWait. So each
// request is limited by the number of messages, not by jetstream.FetchMaxBytes: client and server count the
// bytes of a pinned consumer differently.
func (p *batchPipeline) fetchMore(n int, wait time.Duration) error {
	perRequest := p.r.pullBytes / maxMessageBytes
	for end := time.Now().Add(wait); n > 0; {
		some := min(n, perRequest)
		fetched, err := p.fetch(some, jetstream.FetchMaxWait(max(time.Until(end), time.Millisecond)))
		if err != nil || fetched < some {
			return err
		}
		n -= some
	}
	return nil
}

// awaitOthers waits until no other trigger holds messages. A running trigger settles its messages. The messages
// of a stopped trigger are redelivered to this trigger.
func (p *batchPipeline) awaitOthers(ctx context.Context) error {
	for logged := false; p.heldElsewhere; logged = true {
		p.r.setDeadline(othersPoll)
		info, err := p.consumer.Info(ctx)
		if err != nil {
			return err
		}
		p.removeSettled(info.AckFloor.Stream)
		held := p.count()
		if p.heldElsewhere = info.NumAckPending > held; !p.heldElsewhere {
			break
		}
		if !logged {
			p.t.log.Info("another trigger holds messages of this route: waiting for them",
				"route", p.r.Durable, "elsewhere", info.NumAckPending-held, "here", held)
		}
		if err := p.fetchMore(max(p.r.Batch-held, 1), othersPoll); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// removeSettled removes held messages that another trigger has settled: those up to ackFloor.
func (p *batchPipeline) removeSettled(ackFloor uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = slices.DeleteFunc(p.held, func(it *item) bool { return it.meta.Sequence.Stream <= ackFloor })
}

func (p *batchPipeline) fetch(n int, wait jetstream.FetchOpt) (fetched int, _ error) {
	batch, err := p.consumer.Fetch(n, wait, jetstream.FetchPriorityGroup(priorityGroup))
	if err != nil {
		return 0, err
	}
	for msg := range batch.Messages() {
		p.add(msg)
		fetched++
	}
	if err := batch.Error(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fetched, err
	}
	return fetched, nil
}

// add inserts the message in stream order. A redelivery replaces the earlier delivery of the message.
func (p *batchPipeline) add(msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		p.t.log.Error("a message without metadata", "route", p.r.Durable, "error", err)
		return
	}
	p.heldElsewhere = p.heldElsewhere || meta.Sequence.Consumer != p.nextDelivery
	p.nextDelivery = meta.Sequence.Consumer + 1
	p.pin = msg.Headers().Get(pinHeader)
	it := &item{msg: msg, meta: meta, event: newPostedEvent(msg, meta, &p.r.Route)}
	p.mu.Lock()
	defer p.mu.Unlock()
	at, found := slices.BinarySearchFunc(p.held, meta.Sequence.Stream, func(h *item, seq uint64) int {
		return cmp.Compare(h.meta.Sequence.Stream, seq)
	})
	if found {
		p.held[at] = it
		return
	}
	p.held = slices.Insert(p.held, at, it)
}

func (p *batchPipeline) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.held)
}

// nextBatch returns the messages of the next POST.
func (p *batchPipeline) nextBatch() []*item {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.held[:min(fittingInPost(p.held), p.r.Batch)])
}

// deliver posts and settles items, which are the first held messages. Meanwhile it fetches more messages. Then
// it waits until no other trigger holds messages.
func (p *batchPipeline) deliver(ctx, work context.Context, items []*item) error {
	fetched := make(chan error, 1)
	if room := 2*p.r.Batch - p.count(); room > 0 {
		go func() { fetched <- p.fetchMore(min(room, p.r.Batch), p.r.BatchWait) }()
	} else {
		fetched <- nil
	}
	err := p.postUntilSettled(ctx, work, items)
	if err = cmp.Or(err, <-fetched, ctx.Err()); err != nil {
		return err
	}
	return p.awaitOthers(ctx)
}

// postUntilSettled posts the messages until the function accepts them. If the function refuses a batch, or fails
// on it with 500 in try batchTries or later, each message is posted alone. A message that is refused alone becomes
// a dead letter. After localTries failed tries postUntilSettled returns a yieldError.
func (p *batchPipeline) postUntilSettled(ctx, work context.Context, items []*item) error {
	for tries := uint64(1); ; tries++ {
		p.r.setDeadline(p.t.deliveryMax)
		v := p.post(work, items, tries)
		log := p.t.logger(p.r, items[0].meta).With("events", len(items), "status", v.status, "reason", v.reason)
		var err error
		switch {
		case v.kind == verdictDone:
			return p.acknowledge(work, items)
		case len(items) > 1 && (v.kind == verdictRefused || v.status == http.StatusInternalServerError && tries >= batchTries):
			log.Warn("the function refused a batch or failed on it: posting its events one by one")
			return p.postEach(ctx, work, items)
		case v.kind == verdictRefused:
			if err = p.settleRefused(work, items[0], v); err == nil {
				return nil
			}
			p.r.retried.Add(1)
		case v.kind == verdictDenied:
			log.Error(deniedText, "url", p.r.url)
			p.r.denied.Add(1)
		default:
			p.r.retried.Add(1)
		}
		delay := max(min(p.t.retryDelay(p.r, v, tries), batchBackoffMax), v.retryAfter)
		log.Info("a batch will be posted again", "after", delay.String(), "error", err)
		if tries == localTries {
			return yieldError{delay}
		}
		if p.r.sleep(ctx, delay); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (p *batchPipeline) postEach(ctx, work context.Context, items []*item) error {
	for i := range items {
		if err := p.postUntilSettled(ctx, work, items[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (p *batchPipeline) post(ctx context.Context, items []*item, tries uint64) verdict {
	if len(items) == 1 {
		return p.t.postInSlot(ctx, p.r, items[0].event.withAttempt(items[0].meta.NumDelivered+tries-1))
	}
	return p.t.postInSlot(ctx, p.r, newPostedBatch(items, tries))
}

// acknowledge acknowledges items, which are the first held messages. The acknowledgement of the last one includes
// all earlier ones (AckAll).
func (p *batchPipeline) acknowledge(work context.Context, items []*item) error {
	last, err := p.lastDelivery(items)
	if err != nil {
		return err
	}
	err = p.t.settle(work, func(ctx context.Context, _ jetstream.JetStream) error { return last.DoubleAck(ctx) })
	if err != nil {
		return err
	}
	p.r.acked.Add(uint64(len(items)))
	p.removeFirst(len(items))
	return nil
}

// settleRefused records a refused event as a dead letter and acknowledges it. If DEADLETTERS does not store the event,
// and the function refuses to record it, settleRefused acknowledges the event nevertheless, so that the event does not
// block later events. The stream of the event keeps acknowledged messages.
func (p *batchPipeline) settleRefused(work context.Context, it *item, v verdict) error {
	last, err := p.lastDelivery([]*item{it})
	if err != nil {
		return err
	}
	log := p.t.logger(p.r, it.meta).With("status", v.status, "reason", v.reason)
	err = p.t.settle(work, func(ctx context.Context, js jetstream.JetStream) error {
		err := p.t.recordDeadLetter(ctx, js, p.r, it, v)
		switch {
		case err == nil:
			log.Error("an event was refused and is now a dead letter")
			return countSuccess(&p.r.deadLettered, last.DoubleAck(ctx))
		case errors.Is(err, errFunctionRefused):
			log.Error("an event was refused and could not be stored as a dead letter: it stays in its stream and is not delivered again", "stream", p.r.Stream, "error", err)
			return countSuccess(&p.r.setAside, last.DoubleAck(ctx))
		}
		return err
	})
	if err == nil {
		p.removeFirst(1)
	}
	return err
}

// lastDelivery returns the newest delivery of the last item. It fails if the items are not the first held
// messages: acknowledging them would then settle earlier messages too.
func (p *batchPipeline) lastDelivery(items []*item) (jetstream.Msg, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(items)
	if len(p.held) < n || p.held[0].meta.Sequence.Stream != items[0].meta.Sequence.Stream ||
		p.held[n-1].meta.Sequence.Stream != items[n-1].meta.Sequence.Stream {
		return nil, errors.New("an earlier message arrived while a batch was delivered")
	}
	return p.held[n-1].msg, nil
}

// removeFirst removes the first n held messages.
func (p *batchPipeline) removeFirst(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = p.held[n:]
}

// nakHeld returns the held messages to NATS, so that the next trigger receives them at once and not after AckWait.
func (p *batchPipeline) nakHeld(work context.Context) {
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()
	if len(held) == 0 {
		return
	}
	p.heldElsewhere = true
	err := p.t.settle(work, func(ctx context.Context, js jetstream.JetStream) error {
		for _, it := range held {
			if err := it.msg.Nak(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
				return err
			}
		}
		return js.Conn().FlushWithContext(ctx)
	})
	if err != nil {
		p.t.log.Warn("cannot return unsettled events: they will be delivered again after AckWait", "route", p.r.Durable, "events", len(held), "error", err)
	}
}

// unpin lets another trigger take over at once instead of after the pin has expired.
func (p *batchPipeline) unpin(conn *bus.Connection) {
	ctx, cancel := conn.WithTimeout(context.Background(), unpinTimeout)
	defer cancel()
	info, err := p.consumer.Info(ctx)
	if err != nil || !slices.ContainsFunc(info.PriorityGroups, func(g jetstream.PriorityGroupState) bool {
		return g.PinnedClientID != "" && g.PinnedClientID == p.pin
	}) {
		return
	}
	s, err := conn.JetStream().Stream(ctx, p.r.Stream)
	if err == nil {
		err = s.UnpinConsumer(ctx, p.r.Durable, priorityGroup)
	}
	if err != nil {
		p.t.log.Debug("unpin", "route", p.r.Durable, "error", err)
	}
}
