package console

// The options of the filters state and reason.
var (
	taskStates  = []string{"scheduled", "pending", "processing", "held", "succeeded", "failed"}
	taskReasons = []string{"rejected", "retries_exhausted", "timeout", "unknown", "expired", "cancelled"}
)

var messageStates = []string{"accepted", "sending", "sent", "received", "abandoned"}

// The options of forms. Only admins without queues can choose alertEvents.
var (
	deliveryStates = []string{"pending", "delivered", "failed"}
	endpointEvents = []string{"task.succeeded", "task.failed", "task.held", "task.scheduled", "task.pending", "task.processing", "webhook.disabled"}
	alertEvents    = []string{"alert.raised", "alert.cleared"}
	formats        = []string{"cloudevents", "slack", "dingtalk", "wecom", "feishu"}
)
