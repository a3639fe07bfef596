package bus

import (
	"context"

	"github.com/nats-io/nats.go"
)

// subjectCallers carries the name of each caller that was changed: revoked, given a new token or other
// permissions. It is a core subject; no stream stores it.
const subjectCallers = "notify.callers"

// NotifyCaller publishes that a caller was changed. Call it after the commit. It returns when the
// server has received the message or ctx ends. A message that cannot be sent counts in FailedSends and is sent
// after the next connect.
func (b *Bus) NotifyCaller(ctx context.Context, name string) {
	if b == nil {
		return
	}
	b.start()
	sent := make(chan struct{})
	if !b.spawn(func() {
		defer close(sent)
		b.send(wakeUp{subject: subjectCallers, caller: name}, []byte(name))
	}) {
		b.failedSends.Add(1)
		return
	}
	select {
	case <-sent:
	case <-ctx.Done():
	}
}

// OnCaller calls changed with the name of each caller that any process changes, this one included,
// until stop or Close. Changes that are published while the subscription does not exist are not
// delivered; subscribed is called after each (re)subscription. Neither callback may block.
func (b *Bus) OnCaller(changed func(name string), subscribed func()) (stop func()) {
	return b.subscribe(subjectCallers, func(m *nats.Msg) { changed(string(m.Data)) }, subscribed)
}
