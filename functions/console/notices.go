package console

// notices are what a page says after something was done, by the key in its address.
var notices = map[string]string{
	"retry":         "The task is pending again.",
	"cancel":        "The task was cancelled.",
	"resolve":       "The task was resolved.",
	"queue_paused":  "The queue is paused.",
	"queue_resumed": "The queue is resumed.",
}
