package trigger

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// pullUnordered waits for a message and delivers it; with UnorderedBatch together with the other available messages, up
// to UnorderedBatch messages and about pullBytes bytes. It fetches only with a free slot: a message that waits here
// uses up its AckWait.
func (t *Trigger) pullUnordered(ctx, work context.Context, consumer jetstream.Consumer, r *route, running *sync.WaitGroup) error {
	// A slot becomes free after one POST or, if a batch is not accepted, after the parallel POSTs of its events.
	r.setDeadline(time.Duration(min(max(r.UnorderedBatch, 1), 2)) * t.deliveryMax)
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.setDeadline(pullTimeout)
	bounded, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	items, err := t.fetchItems(r, consumer, 1, jetstream.FetchContext(bounded))
	if err == nil && len(items) > 0 && r.UnorderedBatch > 1 {
		var more []*item
		more, err = t.fetchItems(r, consumer, r.UnorderedBatch-1, jetstream.FetchMaxWait(time.Millisecond), jetstream.FetchMaxBytes(r.pullBytes))
		items = append(items, more...)
	}
	running.Go(func() {
		defer func() { <-r.slots }()
		t.deliverUnordered(work, r, items)
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil
	}
	return err
}

func (t *Trigger) fetchItems(r *route, consumer jetstream.Consumer, n int, options ...jetstream.FetchOpt) (items []*item, _ error) {
	batch, err := consumer.Fetch(n, options...)
	if err != nil {
		return nil, err
	}
	for msg := range batch.Messages() {
		meta, err := msg.Metadata()
		if err != nil {
			t.log.Error("a message without metadata", "route", r.Durable, "error", err)
			continue
		}
		items = append(items, &item{msg, meta, newPostedEvent(msg, meta, &r.Route)})
	}
	return items, batch.Error()
}

// deliverUnordered posts the messages in as few POSTs as their size allows, and settles each message. Until then it
// extends AckWait, so that no other trigger receives the messages. If a heartbeat is lost, the next one still comes in
// time, or the message is redelivered.
func (t *Trigger) deliverUnordered(ctx context.Context, r *route, items []*item) {
	stop := heartbeat(r.AckWait/3, func() {
		for _, it := range items {
			_ = it.msg.InProgress() // no effect once settled
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

// deliverPost posts the messages together and settles them. If the function refuses the POST or fails with
// 500, each message is posted alone, since perhaps only one of them is at fault.
func (t *Trigger) deliverPost(ctx context.Context, r *route, items []*item) {
	var together verdict
	alone := len(items) == 1
	if !alone {
		together = t.postInSlot(ctx, r, newPostedBatch(items, 1))
		if together.kind == verdictDone {
			t.acknowledgeAll(ctx, r, items)
			return
		}
		alone = together.kind == verdictRefused || together.status == http.StatusInternalServerError
	}
	var each sync.WaitGroup
	defer each.Wait()
	for _, it := range items {
		each.Go(func() {
			v := together
			if alone {
				v = t.postInSlot(ctx, r, it.event.withAttempt(it.meta.NumDelivered))
			}
			t.settleByVerdict(ctx, r, it, v)
		})
	}
}

// acknowledgeAll acknowledges the messages. The server processes acknowledgements in order, so the reply to
// the last acknowledgement confirms all of them.
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
		t.logger(r, last.meta).Warn("cannot settle events: they will be delivered again", "events", len(items), "error", err)
		return
	}
	r.acked.Add(uint64(len(items)))
}
