package events

// Stream is the stream that the event goes to.
func (e *DueEvent) Stream() string { return e.stream }
