package bus

// resend sends all unsent wake-ups again. A wake-up that cannot be sent is kept as unsent.
func (b *Bus) resend() {
	for w := range b.takeUnsent() {
		switch {
		case w.caller != "":
			b.spawn(func() { b.send(w, []byte(w.caller)) })
		case w.at.IsZero():
			b.Wake(w.subject, 1)
		default:
			b.WakeAt(w.subject, w.at)
		}
	}
}

func (b *Bus) takeUnsent() map[wakeUp]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	unsent := b.unsent
	b.unsent = map[wakeUp]bool{}
	return unsent
}
