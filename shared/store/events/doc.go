// Package events publishes the rows of event_outbox. Each event is published at least once,
// under an id that stays the same, and the events of one task in order unless one is refused
// alone. Package store describes how the rows are written and how streams are paused.
package events
