package bus

import (
	"context"

	"github.com/nats-io/nats.go"
)

// SubjectCallers carries the name of each caller that was changed: revoked, given
// another token, or allowed other things. It is a core subject; no stream keeps it.
const SubjectCallers = "notify.callers"

// NotifyCaller publishes that a caller was changed; call it after the commit. It
// returns when the server has it or when ctx ends. What cannot be sent is counted
// as dropped and sent when NATS is back.
func (b *Bus) NotifyCaller(ctx context.Context, name string) {
	if b == nil {
		return
	}
	b.start()
	sent := make(chan struct{})
	if !b.spawn(func() {
		defer close(sent)
		b.send(wakeUp{subject: SubjectCallers, caller: name}, []byte(name))
	}) {
		b.dropped.Add(1)
		return
	}
	select {
	case <-sent:
	case <-ctx.Done():
	}
}

// OnCaller calls changed with the name of each caller that any process changes,
// this one included, until stop or Close. What is published while NATS is away, or
// before it has this subscription, does not arrive: subscribed is called as soon as it has it, the
// first time and after each outage. Neither must block.
func (b *Bus) OnCaller(changed func(name string), subscribed func()) (stop func()) {
	return b.subscribe(SubjectCallers, func(m *nats.Msg) { changed(string(m.Data)) }, subscribed)
}
