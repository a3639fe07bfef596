package bus

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
)

// EventsType is what events that are posted together are posted as. It is not
// batchType: a function of an older version takes a batch for accepted messages and
// would drop them, and answers 400 to what it does not know, so that each is posted
// alone.
const EventsType = "application/vnd.sendonce.events+json"

// pullUnordered delivers what is there, at most as many messages as go in one POST,
// and waits for one when there is none.
func (t *Trigger) pullUnordered(ctx, work context.Context, consumer jetstream.Consumer, r *route, under *sync.WaitGroup) error {
	r.setDeadline(2 * t.deliveryMax) // another POST, and then each of its events alone
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.setDeadline(pullFor)
	bounded, cancel := context.WithTimeout(ctx, pullFor)
	defer cancel()
	items, err := t.fetchItems(consumer.Fetch(1, jetstream.FetchContext(bounded)))
	if err == nil && len(items) > 0 {
		var more []*item
		more, err = t.fetchItems(consumer.FetchNoWait(r.UnorderedBatch - 1))
		items = append(items, more...)
	}
	under.Go(func() {
		defer r.release(1)
		t.deliverUnordered(work, r, items)
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil
	}
	return err
}

func (t *Trigger) fetchItems(batch jetstream.MessageBatch, err error) (items []*item, _ error) {
	if err != nil {
		return nil, err
	}
	for msg := range batch.Messages() {
		meta, err := msg.Metadata()
		if err != nil {
			t.bus.log.Error("a message without metadata", "error", err)
			continue
		}
		items = append(items, &item{msg: msg, meta: meta})
	}
	return items, batch.Error()
}

// deliverUnordered posts the messages in as few POSTs as their size allows, and
// settles each.
func (t *Trigger) deliverUnordered(ctx context.Context, r *route, items []*item) {
	for _, it := range items {
		it.event = newPostedEvent(it.msg, it.meta, &r.Route)
	}
	stop := heartbeat(r.AckWait/3, func() {
		for _, it := range items {
			_ = it.msg.InProgress() // has no effect on one that is settled
		}
	})
	defer stop()
	var posts sync.WaitGroup
	defer posts.Wait()
	for rest := items; len(rest) > 0; {
		some := rest[:fittingInPost(rest)]
		rest = rest[len(some):]
		posts.Go(func() { t.deliverPost(ctx, r, some) })
	}
}

// deliverPost makes one POST. Messages that the function refuses together, or breaks
// over, are posted one by one, as one of them may be at fault.
func (t *Trigger) deliverPost(ctx context.Context, r *route, items []*item) {
	var v verdict
	alone := len(items) == 1
	if !alone {
		v = t.postInTurn(ctx, r, postedEvent{headers: map[string]string{contentType: EventsType}, data: encodeBatch(items, 0)})
		alone = v.kind == verdictRefused || v.status == http.StatusInternalServerError
	}
	if !alone && v.kind == verdictDone {
		t.acknowledgeAll(ctx, r, items)
		return
	}
	var each sync.WaitGroup
	defer each.Wait()
	for _, it := range items {
		each.Go(func() {
			v := v
			if alone {
				v = t.postInTurn(ctx, r, it.event.withAttempt(it.meta.NumDelivered))
			}
			t.settleByVerdict(ctx, r, it, v)
		})
	}
}

// acknowledgeAll acknowledges messages that the function has taken. The server gets
// the acknowledgements in this order, so its answer to the last is one to all.
func (t *Trigger) acknowledgeAll(ctx context.Context, r *route, items []*item) {
	last := items[len(items)-1]
	err := t.settle(ctx, func(ctx context.Context, _ jetstream.JetStream) error {
		for _, it := range items[:len(items)-1] {
			if err := it.msg.Ack(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
				return err
			}
		}
		return last.msg.DoubleAck(ctx)
	})
	if err != nil {
		t.logger(r, last.meta).Warn("settle events: they will come again", "events", len(items), "error", err)
		return
	}
	r.acked.Add(uint64(len(items)))
}
