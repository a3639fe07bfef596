package console

// notices are the messages that a page shows after a change, by the query parameter done.
var notices = map[string]string{
	"retry":         "The task is pending again.",
	"cancel":        "The task was cancelled.",
	"resolve":       "The task was resolved.",
	"queue_paused":  "The queue is paused.",
	"queue_resumed": "The queue is resumed.",
}
