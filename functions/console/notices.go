package console

// notices are the messages that a page shows after a change, by the query parameter done.
var notices = map[string]string{
	"retry":                "The task is pending again.",
	"cancel":               "The task was cancelled.",
	"resolve":              "The task was resolved.",
	"queue_paused":         "The queue is paused.",
	"saved":                "Saved.",
	"deleted":              "Deleted.",
	"template_added":       "The template was added.",
	"template_activated":   "The template is active.",
	"template_deactivated": "The template is inactive.",
	"default_reset":        "The default SMS will be sent once more.",
	"word_blocked":         "The word is blocked.",
	"word_allowed":         "The word is allowed again.",
	"queue_resumed":        "The queue is resumed.",
}
