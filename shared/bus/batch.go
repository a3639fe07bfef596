package bus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	batchType       = "application/cloudevents-batch+json"
	batchBytes      = 4 << 20          // of data in one POST
	batchBackoffMax = 10 * time.Second // everything behind the batch waits, and it costs one call
	gatherWait      = 250 * time.Millisecond
	unpinTimeout    = 2 * time.Second
	pinHeader       = "Nats-Pin-Id"
)

// lane is a route of batches at work over one connection.
//
// Its order rests on one rule: a batch begins when no message is in other hands,
// neither of a trigger that was active before and still works nor on its way
// back from one that is gone. NATS numbers its deliveries, so as long as none is
// missing here there is nothing to ask.
type lane struct {
	t        *Trigger
	r        *route
	consumer jetstream.Consumer
	group    string // "" = nothing keeps other triggers from taking messages at the same time
	pin      string // under which the last message came
	next     uint64 // number of the delivery to come
	apart    bool   // messages may be in other hands

	mu   sync.Mutex
	held []*item // in the order of the stream; changed under mu, by the lane alone
}

// item is a message in the trigger's hands.
type item struct {
	msg   jetstream.Msg
	meta  *jetstream.MsgMetadata
	event delivered
}

// pullBatches delivers batches as long as the connection and the consumer last.
func (t *Trigger) pullBatches(ctx, work context.Context, l *link, consumer jetstream.Consumer, r *route) error {
	a := &lane{t: t, r: r, consumer: consumer, apart: true}
	if config := consumer.CachedInfo().Config; config.PriorityPolicy == jetstream.PriorityPolicyPinned {
		a.group = config.PriorityGroups[0]
	} else {
		t.warn(r.Durable + ": without a priority group (nats-server 2.11 or later has them) the order is only kept while one trigger runs")
	}
	for {
		err := a.turn(ctx, work)
		if ctx.Err() != nil && l.ctx.Err() == nil {
			a.unpin(l)
		}
		if err != nil {
			return err
		}
	}
}

// turn collects and delivers one batch. What it could not settle goes back.
func (a *lane) turn(ctx, work context.Context) error {
	stop := heartbeat(a.r.AckWait/3, a.beat)
	err := a.collect(ctx)
	if err == nil {
		err = a.deliver(ctx, work)
	}
	stop()
	a.letGo(work)
	if errors.Is(err, jetstream.ErrPinIDMismatch) { // another trigger is active now
		return nil
	}
	return err
}

func (a *lane) beat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, it := range a.held {
		// A lost one is made up for by the next, or by another delivery.
		_ = it.msg.InProgress()
	}
}

// collect waits for a message, and for as many as follow within BatchWait. It
// holds none when none came.
func (a *lane) collect(ctx context.Context) error {
	// A trigger that only waits must ask again before its pin runs out.
	idle, cancel := context.WithTimeout(ctx, min(pullFor, a.r.AckWait/2))
	defer cancel()
	if err := a.fetch(1, jetstream.FetchContext(idle)); err != nil || len(a.held) == 0 {
		return cmp.Or(ctx.Err(), err)
	}
	// From here on the server ends each wait: a message that it sent to somebody
	// who has just left would only come again after AckWait.
	if a.r.Batch > 1 {
		if err := a.fetch(a.r.Batch-1, jetstream.FetchMaxWait(max(a.r.BatchWait, time.Millisecond))); err != nil {
			return err
		}
	}
	return a.gather(ctx)
}

// gather waits until no message is in other hands: those of a trigger that is
// gone come here, those of one that works disappear.
func (a *lane) gather(ctx context.Context) error {
	for told := false; a.apart && a.group != ""; told = true {
		info, err := a.consumer.Info(ctx)
		if err != nil {
			return err
		}
		if a.apart = info.NumAckPending > len(a.held); !a.apart {
			return nil
		}
		if !told {
			a.t.bus.log.Info("messages are in the hands of another trigger: waiting for them",
				"route", a.r.Durable, "elsewhere", info.NumAckPending-len(a.held), "here", len(a.held))
		}
		if err := a.fetch(max(a.r.Batch-len(a.held), 1), jetstream.FetchMaxWait(gatherWait)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (a *lane) fetch(n int, wait jetstream.FetchOpt) error {
	options := []jetstream.FetchOpt{wait}
	if a.group != "" {
		options = append(options, jetstream.FetchPriorityGroup(a.group))
	}
	batch, err := a.consumer.Fetch(n, options...)
	if err != nil {
		return err
	}
	for msg := range batch.Messages() {
		a.hold(msg)
	}
	if err := batch.Error(); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// hold keeps the message at its place; of one that came twice, the later delivery.
func (a *lane) hold(msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		a.t.bus.log.Error("a message without metadata", "route", a.r.Durable, "error", err)
		return
	}
	a.apart = a.apart || meta.Sequence.Consumer != a.next
	a.next = meta.Sequence.Consumer + 1
	a.pin = msg.Headers().Get(pinHeader)
	it := &item{msg: msg, meta: meta, event: eventOf(msg, meta, &a.r.Route)}
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

// deliver works off what is held. It ends early when ctx does.
func (a *lane) deliver(ctx, work context.Context) error {
	for len(a.held) > 0 {
		if err := a.give(ctx, work, a.held[:chunk(a.held)]); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// chunk says how many of the first go in one POST.
func chunk(held []*item) int {
	size := 0
	for i, it := range held {
		size += len(it.event.data)
		if i > 0 && (size > batchBytes || !it.event.binary() || !held[0].event.binary()) {
			return i
		}
	}
	return len(held)
}

// give posts the messages until the function has taken them. If it refuses them
// together each is posted alone, and buried if it is refused then too.
func (a *lane) give(ctx, work context.Context, items []*item) error {
	for tries := uint64(1); ; tries++ {
		v := a.post(work, items, tries)
		log := a.t.logger(a.r, items[0].meta).With("events", len(items), "status", v.status, "reason", v.reason)
		var err error
		switch {
		case v.kind == done:
			return a.acknowledge(work, items)
		case v.kind == dead && len(items) > 1:
			log.Warn("a batch was refused: posting its events one by one")
			return a.giveEach(ctx, work, items)
		case v.kind == dead:
			if err = a.bury(work, items[0], v); err == nil {
				log.Error("an event was refused and is now a dead letter")
				return nil
			}
			a.r.retried.Add(1)
		case v.kind == denied:
			log.Error("the function does not take our credentials or is elsewhere: mend the trigger's settings", "url", a.r.url)
			a.r.denied.Add(1)
		default:
			a.r.retried.Add(1)
		}
		delay := max(min(a.t.pause(v, tries), batchBackoffMax), v.after)
		log.Info("a batch will be posted again", "after", delay, "error", err)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *lane) giveEach(ctx, work context.Context, items []*item) error {
	for i := range items {
		if err := a.give(ctx, work, items[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (a *lane) post(ctx context.Context, items []*item, tries uint64) verdict {
	select {
	case a.t.slots <- struct{}{}:
		defer func() { <-a.t.slots }()
	case <-ctx.Done():
		return verdict{kind: again, reason: ctx.Err().Error()}
	}
	if len(items) == 1 {
		return a.t.post(ctx, a.r, items[0].event.attempt(items[0].meta.NumDelivered+tries-1))
	}
	body, err := batchOf(items, tries)
	if err != nil {
		return verdict{kind: again, reason: err.Error()}
	}
	return a.t.post(ctx, a.r, delivered{headers: map[string]string{contentType: batchType}, data: body})
}

// batchOf is the events in the JSON batch format.
func batchOf(items []*item, tries uint64) ([]byte, error) {
	events := make([]map[string]any, len(items))
	for i, it := range items {
		events[i] = it.event.attempt(it.meta.NumDelivered + tries - 1).structured()
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // would rewrite the data
	err := encoder.Encode(events)
	return body.Bytes(), err
}

// structured is an event that is in binary mode as a JSON object.
func (d delivered) structured() map[string]any {
	event := make(map[string]any, len(d.headers)+1)
	for name, value := range d.headers {
		if name == contentType {
			event["datacontenttype"] = value
			continue
		}
		event[strings.TrimPrefix(name, attributePrefix)] = value
	}
	switch {
	case len(d.data) == 0:
	case isJSON(d.headers[contentType]) && json.Valid(d.data):
		event["data"] = json.RawMessage(d.data)
	default:
		event["data_base64"] = d.data
	}
	return event
}

func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json"))
}

// acknowledge settles what the function has taken, all at the same time.
func (a *lane) acknowledge(work context.Context, items []*item) error {
	errs := make([]error, len(items))
	var settling sync.WaitGroup
	for i, it := range items {
		settling.Go(func() {
			errs[i] = a.t.settle(work, func(ctx context.Context, _ jetstream.JetStream) error {
				return counted(&a.r.acked, it.msg.DoubleAck(ctx))
			})
		})
	}
	settling.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	a.drop(len(items))
	return nil
}

func (a *lane) bury(work context.Context, it *item, v verdict) error {
	err := a.t.settle(work, func(ctx context.Context, js jetstream.JetStream) error {
		if err := bury(ctx, js, a.r, it.msg, it.meta, it.event, v); err != nil {
			return err
		}
		return counted(&a.r.deadLettered, it.msg.Term())
	})
	if err == nil {
		a.drop(1)
	}
	return err
}

// drop ends holding the first n messages.
func (a *lane) drop(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = a.held[n:]
}

// letGo hands back what is held, so that the active trigger need not wait for
// it. It is many times faster than AckWait, and as good.
func (a *lane) letGo(work context.Context) {
	a.mu.Lock()
	held := a.held
	a.held = nil
	a.mu.Unlock()
	if len(held) == 0 {
		return
	}
	a.apart = true
	err := a.t.settle(work, func(ctx context.Context, js jetstream.JetStream) error {
		for _, it := range held {
			if err := it.msg.Nak(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
				return err
			}
		}
		return js.Conn().FlushWithContext(ctx)
	})
	if err != nil {
		a.t.bus.log.Warn("hand back events: they will come again", "route", a.r.Durable, "events", len(held), "error", err)
	}
}

// unpin lets another trigger take over at once; without it, that waits until the
// pin has run out.
func (a *lane) unpin(l *link) {
	ctx, cancel := context.WithTimeout(l.ctx, unpinTimeout)
	defer cancel()
	info, err := a.consumer.Info(ctx)
	if err != nil || !slices.ContainsFunc(info.PriorityGroups, func(g jetstream.PriorityGroupState) bool {
		return g.PinnedClientID != "" && g.PinnedClientID == a.pin
	}) {
		return
	}
	s, err := l.js.Stream(ctx, a.r.Stream)
	if err == nil {
		err = s.UnpinConsumer(ctx, a.r.Durable, a.group)
	}
	if err != nil {
		a.t.bus.log.Debug("unpin", "route", a.r.Durable, "error", err)
	}
}
