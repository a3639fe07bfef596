package bus

import (
	"context"

	"github.com/nats-io/nats.go"
)

// NotifyCallerChanged publishes that a caller was changed. Call it after the commit. It returns when the server has
// received the message, when sending has failed, or when ctx ends. A message that cannot be sent counts in
// FailedSends and is tried again later.
func (b *Bus) NotifyCallerChanged(ctx context.Context, name string) {
	if b == nil {
		return
	}
	b.start()
	sent := make(chan struct{})
	if !b.spawn(func() {
		defer close(sent)
		b.send(signal{subject: subjectCallers, caller: name}, []byte(name))
	}) {
		b.failedSends.Add(1)
		return
	}
	select {
	case <-sent:
	case <-ctx.Done():
	}
}

// OnCallerChanged calls changed with the name of each caller that any process changes, this process included,
// until Close. It calls subscribed after each (re)subscription, since a message that is published
// while there is no subscription is lost. Neither callback may block.
func (b *Bus) OnCallerChanged(changed func(name string), subscribed func()) {
	b.subscribe(subjectCallers, func(m *nats.Msg) { changed(string(m.Data)) }, subscribed)
}
