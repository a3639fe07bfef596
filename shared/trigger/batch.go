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
	batchTries      = 3                // for a batch that makes the function fail
	localTries      = 5                // before another trigger may try
	batchBackoffMax = 10 * time.Second // short, since later batches wait and a try is one call
	othersPoll      = 250 * time.Millisecond
	unpinTimeout    = 2 * time.Second
	pinHeader       = "Nats-Pin-Id"
)

// batchPipeline delivers a route of ordered batches over one connection.
//
// Invariant: a batch begins only when no other trigger holds unsettled messages of the route. So the
// held messages begin with the oldest unsettled one, and one acknowledgement settles a batch. NATS
// numbers deliveries: only if a number is missing here can messages be elsewhere, and only then is the
// server asked.
type batchPipeline struct {
	t             *Trigger
	r             *route
	consumer      jetstream.Consumer
	pin           string // Nats-Pin-Id of the newest message
	nextDelivery  uint64 // expected number of the next delivery
	heldElsewhere bool   // another trigger may hold messages

	mu   sync.Mutex
	held []*item // in stream order; under mu
}

// item is a message that was delivered to this trigger and is not settled.
type item struct {
	msg   jetstream.Msg
	meta  *jetstream.MsgMetadata
	event postedEvent
}

// pullBatches delivers batches until the connection or the consumer is lost.
func (t *Trigger) pullBatches(ctx, work context.Context, l *bus.Connection, consumer jetstream.Consumer, r *route) error {
	a := &batchPipeline{t: t, r: r, consumer: consumer, heldElsewhere: true}
	if has := consumer.CachedInfo().Config; has.PriorityPolicy != jetstream.PriorityPolicyPinned || has.AckPolicy != jetstream.AckAllPolicy {
		return fmt.Errorf("consumer %s cannot keep the order of batches: delete it, and the trigger will create it correctly", r.Durable)
	}
	for {
		err := a.run(ctx, work)
		var way yieldError
		away := errors.As(err, &way)
		if !l.Lost() && (away || ctx.Err() != nil) {
			a.unpin(l)
		}
		switch {
		case away:
			r.sleep(ctx, way.after)
		case err != nil:
			return err
		}
	}
}

// yieldError ends a run that could not deliver, so that another trigger can try.
type yieldError struct{ after time.Duration }

func (yieldError) Error() string { return "perhaps another trigger can deliver it" }

// run fetches and delivers until nothing is left, then returns unsettled messages.
func (a *batchPipeline) run(ctx, work context.Context) error {
	stop := heartbeat(a.r.AckWait/3, a.extendAckWait)
	err := a.fetchBatch(ctx)
	for err == nil {
		items := a.nextBatch()
		if len(items) == 0 {
			break
		}
		err = a.deliver(ctx, work, items)
	}
	stop()
	a.nakHeld(work)
	if errors.Is(err, jetstream.ErrPinIDMismatch) { // another trigger is active now
		return nil
	}
	return err
}

func (a *batchPipeline) extendAckWait() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, it := range a.held {
		// A lost one is replaced by the next, or by another delivery.
		_ = it.msg.InProgress()
	}
}

// fetchBatch waits for a message and for those that follow within BatchWait. If none arrives, none is
// held.
func (a *batchPipeline) fetchBatch(ctx context.Context) error {
	// Ask again before the pin expires.
	idle, cancel := context.WithTimeout(ctx, min(pullFor, a.r.AckWait/2))
	defer cancel()
	a.r.setDeadline(pullFor)
	if _, err := a.fetch(1, jetstream.FetchContext(idle)); err != nil || a.count() == 0 {
		return cmp.Or(ctx.Err(), err)
	}
	if err := a.fetchMore(a.r.Batch-1, a.r.BatchWait); err != nil {
		return err
	}
	return a.awaitOthers(ctx)
}

// fetchMore fetches up to n messages that arrive within wait. The server ends the wait: a message sent
// to a client that just stopped waiting would come again only after AckWait. For the same reason the
// requests are limited by count and not by jetstream.FetchMaxBytes, where client and server count the
// bytes of a pinned consumer differently.
func (a *batchPipeline) fetchMore(n int, wait time.Duration) error {
	atOnce := a.r.pullBytes / maxMessageBytes
	for end := time.Now().Add(wait); n > 0; {
		some := min(n, atOnce)
		fetched, err := a.fetch(some, jetstream.FetchMaxWait(max(time.Until(end), time.Millisecond)))
		if err != nil || fetched < some {
			return err
		}
		n -= some
	}
	return nil
}

// awaitOthers waits until no other trigger holds messages: those of a trigger that is gone are
// redelivered here, those of a working one get settled.
func (a *batchPipeline) awaitOthers(ctx context.Context) error {
	for logged := false; a.heldElsewhere; logged = true {
		a.r.setDeadline(othersPoll)
		info, err := a.consumer.Info(ctx)
		if err != nil {
			return err
		}
		a.removeSettled(info.AckFloor.Stream)
		held := a.count()
		if a.heldElsewhere = info.NumAckPending > held; !a.heldElsewhere {
			break
		}
		if !logged {
			a.t.log.Info("another trigger holds messages of this route: waiting for them",
				"route", a.r.Durable, "elsewhere", info.NumAckPending-held, "here", held)
		}
		if err := a.fetchMore(max(a.r.Batch-held, 1), othersPoll); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// removeSettled drops messages that another trigger has settled, so that they are not counted as held
// here.
func (a *batchPipeline) removeSettled(settled uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = slices.DeleteFunc(a.held, func(it *item) bool { return it.meta.Sequence.Stream <= settled })
}

func (a *batchPipeline) fetch(n int, wait jetstream.FetchOpt) (fetched int, _ error) {
	batch, err := a.consumer.Fetch(n, wait, jetstream.FetchPriorityGroup(priorityGroup))
	if err != nil {
		return 0, err
	}
	for msg := range batch.Messages() {
		a.add(msg)
		fetched++
	}
	if err := batch.Error(); !errors.Is(err, context.DeadlineExceeded) {
		return fetched, err
	}
	return fetched, nil
}

// add inserts the message in stream order; a later delivery replaces an earlier one.
func (a *batchPipeline) add(msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		a.t.log.Error("a message without metadata", "route", a.r.Durable, "error", err)
		return
	}
	a.heldElsewhere = a.heldElsewhere || meta.Sequence.Consumer != a.nextDelivery
	a.nextDelivery = meta.Sequence.Consumer + 1
	a.pin = msg.Headers().Get(pinHeader)
	it := &item{msg: msg, meta: meta, event: newPostedEvent(msg, meta, &a.r.Route)}
	a.mu.Lock()
	defer a.mu.Unlock()
	at, twice := slices.BinarySearchFunc(a.held, meta.Sequence.Stream, func(h *item, seq uint64) int {
		return cmp.Compare(h.meta.Sequence.Stream, seq)
	})
	if twice {
		a.held[at] = it
		return
	}
	a.held = slices.Insert(a.held, at, it)
}

func (a *batchPipeline) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.held)
}

// nextBatch returns the messages of the next POST.
func (a *batchPipeline) nextBatch() []*item {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.held[:min(fittingInPost(a.held), a.r.Batch)])
}

// deliver posts and settles items, the first held messages, and fetches more meanwhile.
func (a *batchPipeline) deliver(ctx, work context.Context, items []*item) error {
	fetched := make(chan error, 1)
	if room := 2*a.r.Batch - a.count(); room > 0 {
		go func() { fetched <- a.fetchMore(min(room, a.r.Batch), a.r.BatchWait) }()
	} else {
		fetched <- nil
	}
	err := a.postUntilTaken(ctx, work, items)
	if err = cmp.Or(err, <-fetched, ctx.Err()); err != nil {
		return err
	}
	return a.awaitOthers(ctx)
}

// postUntilTaken posts the messages until the function accepts them. If it refuses them together, or
// fails repeatedly with 500, each is posted alone and becomes a dead letter if it is refused again.
func (a *batchPipeline) postUntilTaken(ctx, work context.Context, items []*item) error {
	for tries := uint64(1); ; tries++ {
		a.r.setDeadline(a.t.deliveryMax)
		v := a.post(work, items, tries)
		log := a.t.logger(a.r, items[0].meta).With("events", len(items), "status", v.status, "reason", v.reason)
		var err error
		switch {
		case v.kind == verdictDone:
			return a.acknowledge(work, items)
		case len(items) > 1 && (v.kind == verdictRefused || v.status == http.StatusInternalServerError && tries >= batchTries):
			log.Warn("the function failed on a batch: posting its events one by one")
			return a.postEach(ctx, work, items)
		case v.kind == verdictRefused:
			if err = a.deadLetter(work, items[0], v); err == nil {
				return nil
			}
			a.r.retried.Add(1)
		case v.kind == verdictDenied:
			log.Error("the function rejected the trigger's credentials or redirected: check SENDONCE_TRIGGER_USER, SENDONCE_TRIGGER_PASSWORD and the base URL", "url", a.r.url)
			a.r.denied.Add(1)
		default:
			a.r.retried.Add(1)
		}
		delay := max(min(a.t.retryDelay(v, tries), batchBackoffMax), v.retryAfter)
		log.Info("a batch will be posted again", "after", delay.String(), "error", err)
		if tries == localTries {
			return yieldError{delay}
		}
		if a.r.sleep(ctx, delay); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (a *batchPipeline) postEach(ctx, work context.Context, items []*item) error {
	for i := range items {
		if err := a.postUntilTaken(ctx, work, items[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (a *batchPipeline) post(ctx context.Context, items []*item, tries uint64) verdict {
	if len(items) == 1 {
		return a.t.postInTurn(ctx, a.r, items[0].event.withAttempt(items[0].meta.NumDelivered+tries-1))
	}
	return a.t.postInTurn(ctx, a.r, postedEvent{headers: map[string]string{contentType: BatchType}, data: encodeBatch(items, tries)})
}

// acknowledge settles items and everything before them.
func (a *batchPipeline) acknowledge(work context.Context, items []*item) error {
	last, err := a.lastDelivery(items)
	if err != nil {
		return err
	}
	err = a.t.settle(work, func(ctx context.Context, _ jetstream.JetStream) error { return last.DoubleAck(ctx) })
	if err != nil {
		return err
	}
	a.r.acked.Add(uint64(len(items)))
	a.removeFirst(len(items))
	return nil
}

// deadLetter settles a refused event. If neither DEADLETTERS nor the function stores it, it is
// acknowledged all the same, so that later events go on: the stream of such a route keeps acknowledged
// messages.
func (a *batchPipeline) deadLetter(work context.Context, it *item, v verdict) error {
	last, err := a.lastDelivery([]*item{it})
	if err != nil {
		return err
	}
	log := a.t.logger(a.r, it.meta).With("status", v.status, "reason", v.reason)
	err = a.t.settle(work, func(ctx context.Context, js jetstream.JetStream) error {
		err := a.t.deadLetter(ctx, js, a.r, it.msg, it.meta, it.event, v)
		switch {
		case err == nil:
			log.Error("an event was refused and is now a dead letter")
			return countSuccess(&a.r.deadLettered, last.DoubleAck(ctx))
		case errors.Is(err, errFunctionRefused):
			log.Error("an event was refused and could not be stored as a dead letter: it stays in its stream and is not delivered again", "stream", a.r.Stream, "error", err)
			return countSuccess(&a.r.setAside, last.DoubleAck(ctx))
		}
		return err
	})
	if err == nil {
		a.removeFirst(1)
	}
	return err
}

// lastDelivery returns the newest delivery of the last of items. It fails if items are not the first
// held messages, since acknowledging them would settle earlier ones.
func (a *batchPipeline) lastDelivery(items []*item) (jetstream.Msg, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(items)
	if len(a.held) < n || a.held[0].meta.Sequence.Stream != items[0].meta.Sequence.Stream ||
		a.held[n-1].meta.Sequence.Stream != items[n-1].meta.Sequence.Stream {
		return nil, errors.New("an earlier message arrived while a batch was delivered")
	}
	return a.held[n-1].msg, nil
}

// removeFirst drops the first n held messages.
func (a *batchPipeline) removeFirst(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = a.held[n:]
}

// nakHeld returns the held messages at once; otherwise the active trigger would wait for AckWait.
func (a *batchPipeline) nakHeld(work context.Context) {
	a.mu.Lock()
	held := a.held
	a.held = nil
	a.mu.Unlock()
	if len(held) == 0 {
		return
	}
	a.heldElsewhere = true
	err := a.t.settle(work, func(ctx context.Context, js jetstream.JetStream) error {
		for _, it := range held {
			if err := it.msg.Nak(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
				return err
			}
		}
		return js.Conn().FlushWithContext(ctx)
	})
	if err != nil {
		a.t.log.Warn("return unsettled events: they will be delivered again", "route", a.r.Durable, "events", len(held), "error", err)
	}
}

// unpin lets another trigger take over at once instead of after the pin has expired.
func (a *batchPipeline) unpin(l *bus.Connection) {
	ctx, unbind := l.UntilLost(context.Background())
	defer unbind()
	ctx, cancel := context.WithTimeout(ctx, unpinTimeout)
	defer cancel()
	info, err := a.consumer.Info(ctx)
	if err != nil || !slices.ContainsFunc(info.PriorityGroups, func(g jetstream.PriorityGroupState) bool {
		return g.PinnedClientID != "" && g.PinnedClientID == a.pin
	}) {
		return
	}
	s, err := l.JetStream().Stream(ctx, a.r.Stream)
	if err == nil {
		err = s.UnpinConsumer(ctx, a.r.Durable, priorityGroup)
	}
	if err != nil {
		a.t.log.Debug("unpin", "route", a.r.Durable, "error", err)
	}
}
