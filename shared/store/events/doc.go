// Package events publishes the events of event_outbox. Each event is published at least once, always under the same id,
// or becomes a dead letter if the broker refuses it. A single relay publishes the events of one task in order, unless the
// stream does not accept one of them while it accepts others. Package store describes how the rows are written and how
// streams are paused.
package events
