// Package robot writes the texts that robots of chat groups get in place of events.
package robot

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/task"
)

// Text returns the text about an event, in English and Chinese. payload is the event as JSON. The text always contains
// "Sendonce", which robots may demand as a keyword. It never contains a URL, whose path may be a secret. Names of queues and
// streams have no < and no @, so they cannot be links or mentions.
func Text(payload string) (string, error) {
	var event api.WebhookEvent
	if err := json.Unmarshal([]byte(payload), &event); err != nil {
		return "", err
	}
	switch event.Type {
	case "sendonce.alert.raised.v1", "sendonce.alert.cleared.v1":
		return textOf(event.Data, alertText)
	case "sendonce.webhook.disabled.v1":
		return textOf(event.Data, disabledText)
	case "sendonce.test.v1":
		return "[Sendonce] Test: this robot is set up to receive alerts.\n[Sendonce] 测试：此机器人已可接收告警。", nil
	}
	return "", fmt.Errorf("its type %q is neither an alert nor a disabled endpoint", event.Type)
}

func textOf[D any](data []byte, text func(D) string) (string, error) {
	var d D
	if err := json.Unmarshal(data, &d); err != nil {
		return "", err
	}
	return text(d), nil
}

// alertNames are the names of the kinds of alerts, in English and Chinese.
var alertNames = map[task.AlertKind][2]string{
	task.AlertFailureRate: {"many failures, queue ", "失败率过高，队列 "},
	task.AlertBacklog:     {"backlog, queue ", "积压，队列 "},
	task.AlertStreamFull:  {"stream almost full, stream ", "流将满，流 "},
}

func alertText(a api.AlertEventData) string {
	kind := task.AlertKind(a.Kind)
	name, known := alertNames[kind]
	if !known {
		name = [2]string{a.Kind + ", ", a.Kind + "，"}
	}
	title, titleZh, cleared, clearedZh := "Alert", "告警", "", ""
	if a.ClearedAt != nil {
		title, titleZh = "Alert cleared", "告警解除"
		cleared, clearedZh = ", cleared "+utc(*a.ClearedAt), "，解除于 "+utc(*a.ClearedAt)
	}
	value, threshold := alertValue(kind, a.Value), alertValue(kind, a.Threshold)
	return fmt.Sprintf("[Sendonce] %s: %s%s\nValue %s, threshold %s, since %s%s\n", title, name[0], a.Queue, value, threshold, utc(a.Since), cleared) +
		fmt.Sprintf("[Sendonce] %s：%s%s\n当前值 %s，阈值 %s，开始于 %s%s", titleZh, name[1], a.Queue, value, threshold, utc(a.Since), clearedZh)
}

// alertValue formats the value of a backlog as a number of tasks, and every other value as a percentage.
func alertValue(kind task.AlertKind, value float64) string {
	if kind == task.AlertBacklog {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strconv.FormatFloat(100*value, 'f', 1, 64) + "%"
}

// disabledReasons are the reasons why an endpoint was disabled, in English and Chinese.
var disabledReasons = map[string][2]string{
	message.DisabledGone:    {"it returned 410", "返回了 410"},
	message.DisabledFailing: {"it kept failing", "持续失败"},
}

func disabledText(e api.EndpointEventData) string {
	since, sinceZh := "", ""
	if e.FailingSince != nil {
		since, sinceZh = ", failing since "+utc(*e.FailingSince), "，自 "+utc(*e.FailingSince)+" 起失败"
	}
	return fmt.Sprintf("[Sendonce] Webhook endpoint disabled: %s\nReason: %s%s, id %s\n", task.HostOf(e.URL), disabledReasons[e.Reason][0], since, e.EndpointID) +
		fmt.Sprintf("[Sendonce] 回调端点已停用：%s\n原因：%s%s，ID %s", task.HostOf(e.URL), disabledReasons[e.Reason][1], sinceZh, e.EndpointID)
}

func utc(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }
