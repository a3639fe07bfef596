package bus

// resend tries again to send everything in unsent. What cannot be sent then is kept in unsent again.
func (b *Bus) resend() {
	for s := range b.takeUnsent() {
		switch {
		case s.caller != "":
			b.spawn(func() { b.send(s, []byte(s.caller)) })
		case s.at.IsZero():
			b.Wake(s.subject, 1)
		default:
			b.WakeAt(s.subject, s.at)
		}
	}
}

func (b *Bus) takeUnsent() map[signal]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	unsent := b.unsent
	b.unsent = map[signal]bool{}
	return unsent
}
