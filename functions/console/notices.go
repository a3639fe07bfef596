package console

// notices has the texts that a page shows after a change, by the value of the parameter "done" in the address.
var notices = map[string]string{
	"retry":                "The task is pending again.",
	"cancel":               "The task was cancelled.",
	"resolve":              "The task was resolved.",
	"queue_paused":         "The queue is paused.",
	"sent":                 "The message was submitted: this is its task.",
	"sent_before":          "This form was sent before: this is its task. Open the page again to send another message.",
	"caller_revoked":       "The caller is revoked.",
	"dismissed":            "The event was dismissed.",
	"saved":                "Saved.",
	"deleted":              "Deleted.",
	"template_added":       "The template was added.",
	"template_activated":   "The template is active.",
	"template_deactivated": "The template is inactive.",
	"default_reset":        "The default SMS may be sent once more: with the next submission without content.",
	"word_blocked":         "The word is blocked.",
	"word_allowed":         "The word is allowed again.",
	"queue_resumed":        "The queue is resumed.",

	"message_redrive":  "The message is sent again.",
	"message_abandon":  "The message is abandoned.",
	"messages_redrive": "Sent again: %s messages.",
	"messages_abandon": "Abandoned: %s messages.",

	"subscribe_resent":           "The subscribe message is sent again.",
	"subscribe_skipped":          "It was not sent again: it is being sent already.",
	"subscribe_template_resumed": "The template is resumed. Messages that are due now: %s.",

	"robot_added":      "The robot is added. Send a test event to check it.",
	"endpoint_enable":  "The endpoint is enabled.",
	"endpoint_disable": "The endpoint is disabled.",
	"endpoint_delete":  "The endpoint is deleted.",
	"endpoint_test":    "A test event is on its way. This page shows the response.",
	"delivery_resent":  "The delivery is sent again.",
	"resent":           "Sent again: %s deliveries.",
	"resent_more":      "Sent again: %s deliveries. There are more: press the button once more.",

	"bulk_started": "The change was started. This page shows its progress.",
	"bulk_stopped": "The change was stopped.",
}
