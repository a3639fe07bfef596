package console

import (
	"strings"

	"github.com/sendonce/sendonce/shared/task"
)

// englishResults has English texts for the results that Sendonce itself writes. Sendonce writes them in Chinese, as the original SMS API
// does.
var englishResults = map[string]string{
	task.ResultTimeoutRetry:     "no report in time, retried",
	task.ResultTimeoutExhausted: "no report in time, and no retry left",
	task.ResultTimeoutUnknown:   "no report in time: it is unknown whether it was sent",
	task.ResultExpired:          "expired",
	task.ResultCancelled:        "cancelled",
	task.SendFailedMessage:      "the message could not be sent",
}

// resultText returns the result of a task in a language. Texts of senders and operators are not translated.
func resultText(language, result string) string {
	if language == "zh" {
		return result
	}
	reported, exhausted := strings.CutPrefix(result, task.ResultExhaustedPrefix)
	if english := englishResults[reported]; english != "" {
		reported = english
	}
	if exhausted {
		return "no retry left: " + reported
	}
	return reported
}
