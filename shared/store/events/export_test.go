package events

// Stream is the stream that the event goes to.
func (e *Due) Stream() string { return e.stream }
