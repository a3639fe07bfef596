package console

import (
	"strings"

	"github.com/sendonce/sendonce/shared/task"
)

// englishResults are the results that Sendonce itself gives to tasks, which are in Chinese in the original SMS API.
var englishResults = map[string]string{
	task.ResultTimeoutRetry:     "no report in time, retried",
	task.ResultTimeoutExhausted: "no report in time, and no retry left",
	task.ResultTimeoutUnknown:   "no report in time: nobody knows whether it was sent",
	task.ResultExpired:          "expired, not sent",
	task.ResultCancelled:        "cancelled",
	task.SendFailedMessage:      "the message could not be sent",
}

const englishExhausted = "no retry left: "

// resultText is the result of a task in the language of the page. Results that senders and operators wrote are shown as
// they are.
func resultText(language, result string) string {
	if language == "zh" {
		return result
	}
	reported, exhausted := strings.CutPrefix(result, task.ResultExhaustedPrefix)
	if english := englishResults[reported]; english != "" {
		reported = english
	}
	if exhausted {
		return englishExhausted + reported
	}
	return reported
}
