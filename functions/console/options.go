package console

// The options of the filters of tasks.
var (
	taskStates  = []string{"scheduled", "pending", "processing", "held", "succeeded", "failed"}
	taskReasons = []string{"rejected", "retries_exhausted", "timeout", "unknown", "expired", "cancelled"}
)

// messageStates has the states of a message, which pages translate.
var messageStates = []string{"accepted", "sending", "sent", "received", "abandoned"}

// deliveryStates has the options of the filter of deliveries.
var deliveryStates = []string{"pending", "delivered", "failed"}

// The options of the form for a new endpoint. Only admins without queues can choose alertEvents.
var (
	endpointEvents  = []string{"task.succeeded", "task.failed", "task.held", "task.scheduled", "task.pending", "task.processing", "webhook.disabled"}
	alertEvents     = []string{"alert.raised", "alert.cleared"}
	endpointFormats = []string{"cloudevents", "slack", "dingtalk", "wecom", "feishu"}
)
