package robot_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/robot"
)

func TestText(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]string{
		`{"type":"sendonce.alert.raised.v1","data":{"kind":"failure_rate","queue":"promo","value":0.255,"threshold":0.2,"since":"2026-01-02T11:04:05+08:00"}}`: "[Sendonce] Alert: many failures, queue promo\nValue 25.5%, threshold 20.0%, since 2026-01-02 03:04:05 UTC\n" +
			"[Sendonce] 告警：失败率过高，队列 promo\n当前值 25.5%，阈值 20.0%，开始于 2026-01-02 03:04:05 UTC",
		`{"type":"sendonce.webhook.disabled.v1","data":{"endpoint_id":"7","url":"https://a.test/secret","reason":"failing","failing_since":"2026-01-02T03:04:05Z"}}`: "[Sendonce] Webhook endpoint disabled: a.test\nReason: it kept failing, failing since 2026-01-02 03:04:05 UTC, id 7\n" +
			"[Sendonce] 回调端点已停用：a.test\n原因：持续失败，自 2026-01-02 03:04:05 UTC 起失败，ID 7",
	} {
		event, err := robot.Read(payload)
		require.NoError(t, err)
		require.Equal(t, want, robot.Text(event))
	}
	for payload, problem := range map[string]string{
		`{"type":"sendonce.task.failed.v1"}`:                `its type "sendonce.task.failed.v1" is neither an alert nor a disabled endpoint`,
		`{"type":"sendonce.alert.raised.v1","data":"text"}`: "cannot unmarshal",
		``: "unexpected end",
	} {
		_, err := robot.Read(payload)
		require.ErrorContains(t, err, problem)
	}
}

func TestTextAboutSeveralEventsHasOneLineForEach(t *testing.T) {
	t.Parallel()
	var events []robot.Event
	for _, payload := range []string{
		`{"type":"sendonce.alert.raised.v1","data":{"kind":"backlog","queue":"promo","value":1200,"threshold":1000,"since":"2026-01-02T03:04:05Z"}}`,
		`{"type":"sendonce.alert.cleared.v1","data":{"kind":"stream_full","queue":"EVENTS","value":0.7,"threshold":0.8,"since":"2026-01-02T03:04:05Z","cleared_at":"2026-01-02T03:14:05Z"}}`,
		`{"type":"sendonce.webhook.disabled.v1","data":{"endpoint_id":"7","url":"https://a.test/secret","reason":"failing"}}`,
		`{"type":"sendonce.test.v1"}`,
	} {
		e, err := robot.Read(payload)
		require.NoError(t, err)
		events = append(events, e)
	}
	require.Equal(t, "[Sendonce] 4 events 条通知: ▲ alert 告警, ▽ cleared 解除, value/threshold 当前值/阈值\n"+
		"▲ backlog 积压 promo 1200/1000\n▽ stream almost full 流将满 EVENTS 70.0%/80.0%\n▲ webhook endpoint disabled 回调端点已停用 a.test\nTest 测试", robot.Text(events...))
}

func TestTextAboutSixteenEventsIsShortEnoughForWeCom(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{
		`{"type":"sendonce.alert.raised.v1","data":{"kind":"failure_rate","queue":"` + strings.Repeat("q", 63) + `","value":1,"threshold":0.25}}`,
		`{"type":"sendonce.alert.raised.v1","data":{"kind":"backlog","queue":"` + strings.Repeat("q", 63) + `","value":100000000,"threshold":10000000}}`,
		`{"type":"sendonce.webhook.disabled.v1","data":{"url":"https://` + strings.Repeat("h", 250) + `/"}}`,
	} {
		e, err := robot.Read(payload)
		require.NoError(t, err)
		require.LessOrEqual(t, len(robot.Text(slices.Repeat([]robot.Event{e}, 16)...)), 2048)
	}
}
