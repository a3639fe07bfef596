// Package robot writes the texts that webhooks of chat robots get in place of events.
package robot

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/text"
)

// Event is an event as texts in English and Chinese. They never contain a URL, whose path may be a secret. Names of queues and
// streams have no < and no @, so they cannot be links or mentions.
type Event struct {
	long string // for a text about this event alone
	line string // for a text about several events: so short that 16 of them fit in the 2,048 bytes that WeCom allows
}

// Read reads an event from its JSON.
func Read(payload string) (Event, error) {
	var event api.WebhookEvent
	if err := json.Unmarshal([]byte(payload), &event); err != nil {
		return Event{}, err
	}
	switch event.Type {
	case "sendonce.alert.raised.v1", "sendonce.alert.cleared.v1":
		return eventOf(event.Data, alertEvent)
	case "sendonce.webhook.disabled.v1":
		return eventOf(event.Data, disabledEvent)
	case "sendonce.test.v1":
		return Event{"[Sendonce] Test: this robot is set up to receive alerts.\n[Sendonce] 测试：此机器人已可接收告警。", "Test 测试"}, nil
	}
	return Event{}, fmt.Errorf("its type %q is neither an alert nor a disabled endpoint", event.Type)
}

func eventOf[D any](data []byte, toEvent func(D) Event) (Event, error) {
	var d D
	if err := json.Unmarshal(data, &d); err != nil {
		return Event{}, err
	}
	return toEvent(d), nil
}

// Text returns one text about all events. It always contains "Sendonce", which robots may demand as a keyword.
func Text(events ...Event) string {
	if len(events) == 1 {
		return events[0].long
	}
	lines := []string{fmt.Sprintf("[Sendonce] %d events 条通知: ▲ alert 告警, ▽ cleared 解除, value/threshold 当前值/阈值", len(events))}
	for _, e := range events {
		lines = append(lines, e.line)
	}
	return strings.Join(lines, "\n")
}

// alertNames has the name of each kind of alert and of its subject, in English and Chinese.
var alertNames = map[task.AlertKind]struct{ name, subject, nameZh, subjectZh string }{
	task.AlertFailureRate: {"many failures", "queue", "失败率过高", "队列"},
	task.AlertBacklog:     {"backlog", "queue", "积压", "队列"},
	task.AlertStreamFull:  {"stream almost full", "stream", "流将满", "流"},
}

func alertEvent(a api.AlertEventData) Event {
	kind := task.AlertKind(a.Kind)
	names, known := alertNames[kind]
	if !known {
		names.name, names.subject, names.nameZh, names.subjectZh = a.Kind, "queue", a.Kind, "队列"
	}
	title, titleZh, sign, cleared, clearedZh := "Alert", "告警", "▲", "", ""
	if a.ClearedAt != nil {
		title, titleZh, sign = "Alert cleared", "告警解除", "▽"
		cleared, clearedZh = ", cleared "+utc(*a.ClearedAt), "，解除于 "+utc(*a.ClearedAt)
	}
	value, threshold := alertValue(kind, a.Value), alertValue(kind, a.Threshold)
	long := fmt.Sprintf("[Sendonce] %s: %s, %s %s\nValue %s, threshold %s, since %s%s\n", title, names.name, names.subject, a.Queue, value, threshold, utc(a.Since), cleared) +
		fmt.Sprintf("[Sendonce] %s：%s，%s %s\n当前值 %s，阈值 %s，开始于 %s%s", titleZh, names.nameZh, names.subjectZh, a.Queue, value, threshold, utc(a.Since), clearedZh)
	return Event{long, fmt.Sprintf("%s %s %s %s %s/%s", sign, names.name, names.nameZh, a.Queue, value, threshold)}
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

func disabledEvent(e api.EndpointEventData) Event {
	since, sinceZh := "", ""
	if e.FailingSince != nil {
		since, sinceZh = ", failing since "+utc(*e.FailingSince), "，自 "+utc(*e.FailingSince)+" 起失败"
	}
	host := task.HostOf(e.URL)
	long := fmt.Sprintf("[Sendonce] Webhook endpoint disabled: %s\nReason: %s%s, id %s\n", host, disabledReasons[e.Reason][0], since, e.EndpointID) +
		fmt.Sprintf("[Sendonce] 回调端点已停用：%s\n原因：%s%s，ID %s", host, disabledReasons[e.Reason][1], sinceZh, e.EndpointID)
	return Event{long, "▲ webhook endpoint disabled 回调端点已停用 " + text.Cut(host, 60)}
}

func utc(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }
