package webhooks

// The formats in which events are posted.
const (
	FormatCloudEvents = "cloudevents"
	// The other formats are texts for a chat robot.
	FormatSlack    = "slack"
	FormatDingTalk = "dingtalk"
	FormatWeCom    = "wecom"
	FormatFeishu   = "feishu"
)

// Formats are all formats, the default first.
var Formats = []string{FormatCloudEvents, FormatSlack, FormatDingTalk, FormatWeCom, FormatFeishu}
