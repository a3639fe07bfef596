package trigger

import "context"

// checkWakeStream checks until ctx ends that the stream WAKE stores messages. After the disk of a nats-server was full, the
// streams of that server store nothing until it is restarted: the connection stays and routes pull, but no wake-up arrives.
// After a failed check the next one comes sooner, so that Ready soon returns nil again.
func (t *Trigger) checkWakeStream(ctx context.Context) {
	wait := t.wakeCheckEvery
	for ctx.Err() == nil {
		conn, err := t.bus.AwaitConnection(ctx)
		if err != nil {
			return
		}
		connected, unbind := conn.UntilLost(ctx)
		sleep(connected, wait)
		err = conn.CheckWakeUps(connected)
		if connected.Err() == nil {
			t.setWakeFailure(ctx, err)
			if wait = t.wakeCheckEvery; err != nil {
				wait /= 12 // 5 s
			}
		}
		unbind()
	}
}

// setWakeFailure stores the result of a check, and logs the first failure and the end of failures.
func (t *Trigger) setWakeFailure(ctx context.Context, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil && t.wakeFailure == nil:
		t.log.ErrorContext(ctx, err.Error())
	case err == nil && t.wakeFailure != nil:
		t.log.InfoContext(ctx, "the stream WAKE stores wake-ups again")
	}
	t.wakeFailure = err
}
