// Package events publishes the rows of event_outbox. Each event is published at least once, always under the same id. The
// events of one task are published in order, unless a stream refuses one of them alone. Package store describes how the
// rows are written and how streams are paused.
package events
